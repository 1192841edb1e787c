"""Ranks whose rows are on devices train as one process with rows in RAM, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.contract.parties import TABLES
from tests.exchange.collective.parties import Together, members, together
from tests.exchange.collective.work import STORE, batches, run

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("ahead", [0, 2])
def test_two_ranks_with_rows_on_devices_are_two_ranks_with_rows_in_ram(ahead: int) -> None:
    store = replace(STORE, memory=1 << 20)
    works = [batches(seed) for seed in range(2)]
    seen, contents = [], []
    for device in ("cpu", "cuda"):
        ranks = members(2, TABLES, replace(store, device=device))
        seen.append(together([lambda r=r, of=ranks: run(of[r], works[r], ahead) for r in range(2)]))  # type: ignore[misc]
        everybody = Together(ranks)
        contents.append(
            [(t, c.ids.tobytes(), c.weights.tobytes()) for t, c in everybody.rows.cut(still=True)]
        )
        everybody.close()
    assert contents[0] == contents[1]
    for here, there in zip(*seen, strict=True):
        for one, two in zip(here, there, strict=True):
            np.testing.assert_array_equal(one, two)
