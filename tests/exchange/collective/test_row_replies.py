"""Rows that are packed for each rank come to their places, at once or in two parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange import kernels
from satrap.exchange.collective.ranks import joined
from satrap.exchange.collective.row_replies import RowReplies, owed
from satrap.exchange.collective.row_requests import RowRequest
from satrap.exchange.lookup import LookupRequest
from satrap.exchange.traffic import Rounding
from tests.exchange.collective.work import GROUPS
from tests.support.examples import examples

BOUND = {kernels.FLOAT32: 0.0, kernels.FLOAT16: 2**-11, kernels.BFLOAT16: 2**-8, kernels.INT8: 1 / 254}


@pytest.mark.parametrize("code", kernels.FORMATS)
@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 4), shuffled=st.booleans())
def test_rows_come_to_their_places(code: int, seed: int, ranks: int, shuffled: bool) -> None:
    rng = np.random.default_rng(seed)
    answers = RowReplies(GROUPS, code, Rounding())
    requests, asks, rows, parts, rests = [], [], [], [[] for _ in range(ranks)], [[] for _ in range(ranks)]
    for group in GROUPS:
        n = int(rng.integers(0, 40))
        holder = rng.integers(0, ranks, n)
        wanted = rng.uniform(-1, 1, (n, group.dim)).astype(np.float32)
        places = [np.flatnonzero(holder == rank).astype(np.int32) for rank in range(ranks)]
        later = rng.random(n) < 0.5
        for rank, own in enumerate(places):
            parts[rank] += [owed(later[own]), answers.pack(wanted, own[~later[own]])]
            rests[rank].append(answers.pack(wanted, own[later[own]]))
        splits = np.concatenate([[0], np.full(len(group.tables), n)]).astype(np.int64)
        requests.append(LookupRequest(group.index, np.arange(n, dtype=np.uint64), splits))
        asks.append([RowRequest(np.empty(0, np.uint64), splits, (), own) for own in places])
        rows.append(wanted)
    if shuffled:
        requests, asks, rows = requests[::-1], asks[::-1], rows[::-1]
    found, missing = answers.place_early([joined(part) for part in parts], requests, asks)
    answers.place_owed([joined(rest) for rest in rests], requests, missing, found)
    for one, wanted in zip(found, rows, strict=True):
        assert np.abs(one - wanted).max(initial=0) <= BOUND[code]
    whole = [
        [answers.pack(w, ask[rank].rows) for ask, w in zip(asks, rows, strict=True)] for rank in range(ranks)
    ]
    given = [joined(one[::-1] if shuffled else one) for one in whole]
    for one, wanted in zip(answers.place(given, requests, asks), found, strict=True):
        np.testing.assert_array_equal(one, wanted)
