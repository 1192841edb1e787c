"""Sums in fewer bits are off by no more than their rounding, and are the same on all processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from satrap.dense import Workers
from satrap.dense.comm.quantized_allreduce import BLOCK, ShortSum
from satrap.exchange.kernels import BFLOAT16, FLOAT16, INT8
from satrap.exchange.wire.formats import CODES
from tests.dense.threads import together
from tests.support.examples import examples

KINDS = ("bfloat16", "float16", "int8")
EXACT = 3
LARGEST = float(np.finfo(np.float32).max)


def summed(terms: np.ndarray, kind: str, exact: int = EXACT) -> np.ndarray:
    """The sums of float32[workers, n] terms, which all workers have alike."""

    def work(workers: Workers) -> np.ndarray:
        mine = torch.from_numpy(terms[workers.rank].copy())
        workers.sum(mine, exact=exact)
        return mine.numpy()

    found = together(len(terms), work, dense=kind)
    assert all(one.tobytes() == found[0].tobytes() for one in found)
    return found[0]


def moved(numbers: np.ndarray, kind: str, world: int) -> np.ndarray:
    """How far rounding moves float64[n] numbers at most, as `ShortSum` says."""
    part = -(-len(numbers) // (world * BLOCK)) * BLOCK
    padded = np.zeros(world * part)
    padded[: len(numbers)] = np.abs(numbers)
    shape = {INT8: (-1, BLOCK), FLOAT16: (world, part), BFLOAT16: (-1, 1)}[CODES[kind]]
    each = padded.reshape(shape) if len(numbers) else padded
    peak = np.broadcast_to(each.max(-1, keepdims=True, initial=0), each.shape)
    bounds = {INT8: peak / 254 * (1 + 1e-5), FLOAT16: each / 2048 + peak / 2**39, BFLOAT16: each / 256}
    return bounds[CODES[kind]].reshape(-1)[: len(numbers)] + 1e-40  # what denormal steps are off by


NUMBERS = st.one_of(
    st.floats(-1, 1, width=32),
    st.floats(-(2.0**-100), 2.0**-100, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.sampled_from(KINDS), st.integers(1, 4), st.data())
def test_a_sum_is_off_by_the_rounding_of_its_terms_and_its_own(
    kind: str, world: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, 3 * BLOCK + 5))
    terms = data.draw(arrays(np.float32, (world, EXACT + count), elements=NUMBERS))
    found = summed(terms, kind).astype(np.float64)
    exact, magnitude = terms.astype(np.float64).sum(0), np.abs(terms).astype(np.float64).sum(0)
    float32 = magnitude * world * 2.0**-23
    assert (np.abs(found - exact) <= float32)[:EXACT].all()
    exact, float32 = exact[EXACT:], float32[EXACT:]
    first = sum(moved(one[EXACT:].astype(np.float64), kind, world) for one in terms) + float32 * 1.01
    assert (np.abs(found[EXACT:] - exact) <= first + moved(np.abs(exact) + first, kind, world)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_average_sum_is_off_by_little(kind: str, world: int) -> None:
    terms = np.random.default_rng(world).standard_normal((world, EXACT + 5000)).astype(np.float32)
    exact = terms.astype(np.float64).sum(0)
    error = (summed(terms, kind) - exact)[EXACT:]
    relative = float(np.sqrt(np.square(error).sum() / np.square(exact[EXACT:]).sum()))
    assert 0 < relative < {"bfloat16": 0.003, "float16": 0.0004, "int8": 0.012}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_float32_can_hold_is_not_lost(kind: str) -> None:
    """Whatever the magnitudes: between blocks, between workers, and near the ends of the range."""
    for factor in (1e-35, 1e-10, 1e10, 1e37):
        terms = np.random.default_rng(1).uniform(0.5, 1, (2, 2 * BLOCK)).astype(np.float32)
        terms[1, BLOCK:] *= np.float32(1e-3)
        terms *= np.float32(factor)
        np.testing.assert_allclose(summed(terms, kind, 0), terms.astype(np.float64).sum(0), rtol=0.02)
    top = summed(np.full((2, 5), 1.69e38, np.float32), kind, 0)
    np.testing.assert_allclose(top, 3.38e38, rtol=0.01)
    assert not np.isfinite(summed(np.full((2, 5), 2e38, np.float32), kind, 0)).any()
    assert not np.isfinite(summed(np.array([[LARGEST], [np.nan]], np.float32), kind, 0)).any()


@pytest.mark.parametrize(("kind", "block"), [("bfloat16", 256), ("float16", 256), ("int8", 132)])
def test_a_process_sends_its_terms_and_its_sums_in_few_bytes(kind: str, block: int) -> None:
    sent: list[int] = []

    def swap(given: np.ndarray) -> np.ndarray:
        sent.append(len(given))
        return given

    ShortSum(CODES[kind], 4, swap)(np.ones(EXACT + 4 * 10 * BLOCK, np.float32), EXACT)
    scale = 4
    assert sent == [4 * (4 * EXACT + scale + 10 * block), 4 * (scale + 10 * block)]


@pytest.mark.parametrize("kind", KINDS)
def test_how_far_is_measured(kind: str) -> None:
    """The sum of one term is rounded once more, which changes nothing."""
    term = torch.linspace(-1, 1, BLOCK)

    def work(workers: Workers) -> tuple[float | None, float]:
        before, mine = workers.rounding, term.clone()
        assert before is None
        workers.sum(mine, exact=0)
        return workers.rounding, float((mine - term).norm() / term.norm())

    [(measured, real)] = together(1, work, dense=kind)
    assert measured == pytest.approx(real, rel=0.02)
    assert real > 0
    assert together(2, lambda workers: workers.rounding) == [0.0, 0.0]
