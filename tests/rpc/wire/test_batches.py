"""Batches over the network: every field, to the bit; damage is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.batch import Batch, Jagged
from satrap.errors import DataError
from satrap.rpc.wire.batches import pack_batch, unpack_batch
from satrap.rpc.wire.frames import FrameError
from satrap.rpc.wire.text import unpack_text
from tests.support.batches import assert_same
from tests.support.examples import examples


def make(rng: np.random.Generator, size: int, kinds: list[str], dense: list[str]) -> Batch:
    ids = {}
    for number, kind in enumerate(kinds):
        counts = np.ones(size, np.int64) if kind == "one" else rng.integers(0, 4, size)
        values = rng.integers(0, 2**64, int(counts.sum()), dtype=np.uint64)
        offsets = None if kind == "one" else np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        weights = rng.random(len(values)).astype(np.float32) if kind == "weighted" else None
        ids[f"feature {number}"] = Jagged(values, offsets, weights)
    arrays = {
        "numeric": rng.random((size, 3)).astype(np.float32),
        "labels": rng.random((size, 2)).astype(np.float64 if size % 2 else np.float32),
        "label_mask": rng.random((size, 2)) < 0.5,
        "weights": rng.random(size).astype(np.float32),
        "groups": rng.integers(0, 2**64, size, dtype=np.uint64),
    }
    position = {"cursor": [1, 2], "skip": size, "check": 2**32 - 1}
    events = {
        f"number {name}": Jagged(rng.random(len(j.values)).astype(np.float32), j.offsets)
        for name, j in ids.items()
        if len(dense) % 2
    }
    return Batch(size, ids, **{name: arrays[name] for name in dense}, position=position, events=events)


@given(
    st.integers(0, 2**32),
    st.integers(0, 20),
    st.lists(st.sampled_from(["one", "many", "weighted"]), max_size=5),
    st.lists(st.sampled_from(["numeric", "labels", "label_mask", "weights", "groups"]), unique=True),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(60))
def test_a_batch_arrives_as_it_was(
    seed: int, size: int, kinds: list[str], dense: list[str], shifted: bool
) -> None:
    batch = make(np.random.default_rng(seed), size, kinds, dense)
    first, *parts = [bytes(memoryview(p)) for p in pack_batch(batch, {"progress": 0.5})]
    text = unpack_text(first)
    assert text["progress"] == 0.5
    # messages may lie at any address
    moved = [memoryview(bytearray(b"x" * shifted + p))[int(shifted) :] for p in parts]
    assert_same(unpack_batch(text, moved), batch)


def test_arrays_are_views_of_the_message() -> None:
    batch = make(np.random.default_rng(1), 10, ["one", "many"], ["labels"])
    first, *parts = pack_batch(batch, {})
    received = [bytearray(memoryview(p)) for p in parts]
    again = unpack_batch(unpack_text(first), received)
    received[3][:4] = b"\0\0\x80?"
    assert again.labels is not None
    assert again.labels[0, 0] == 1.0


BATCH = make(np.random.default_rng(1), 10, ["one", "many"], ["labels"])
ARRAYS = unpack_text(pack_batch(BATCH, {})[0])["arrays"]


@pytest.mark.parametrize(
    "change",
    [
        {"size": 11},
        {"size": "ten"},
        {"features": [["a", 10, False, False]]},
        {"features": [["a", 1000, False, False], ["b", 3, True, False]]},
        {"features": 7},
        {"events": [["a", 3, True, False]]},
        {"arrays": ARRAYS | {"labels": ["<f4", [10, 3]]}},
        {"arrays": ARRAYS | {"labels": ["<f4", [5, 4]]}},
        {"arrays": ARRAYS | {"labels": ["<f4", [20]]}},
        {"arrays": ARRAYS | {"labels": ["<u4", [10, 2]]}},
        {"arrays": ARRAYS | {"ids": ["<i8", ARRAYS["ids"][1]]}},
        {"arrays": ARRAYS | {"ids": ["<u8", [1, *ARRAYS["ids"][1]]]}},
        {"arrays": ARRAYS | {"numeric": ["<f4", [10, 3]]}},
        {"arrays": {k: v for k, v in ARRAYS.items() if k != "labels"} | {"nonsense": ["<f4", [10, 2]]}},
        {"arrays": None},
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    first, *parts = pack_batch(BATCH, {})
    with pytest.raises((FrameError, DataError)):
        unpack_batch({**unpack_text(first), **change}, parts)


def test_a_missing_part_is_refused() -> None:
    first, *parts = pack_batch(BATCH, {})
    with pytest.raises(FrameError, match="arrays without names"):
        unpack_batch(unpack_text(first), parts[:-1])
