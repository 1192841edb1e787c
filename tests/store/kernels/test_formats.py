"""16-bit rows: exact widening, unbiased rounding, reproducible, small updates are not lost."""

import numpy as np
import pytest
import torch

from satrap.errors import ConfigError
from satrap.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import RowChunk, Shard
from satrap.store.kernels.formats import FORMATS, LARGEST, padded_bytes
from satrap.store.row_spec import plan
from tests.support.covering import covering

TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALVES = list(TORCH)
HIDDEN = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half a unit in the last place of 1.0: what rounding to nearest loses."""


def one(dim, dtype, *, optimizer=None, seed=0, **arguments):
    return Shard(
        [Table("a", dim=dim, dtype=dtype)], optimizer=optimizer or SGD(lr=1.0), seed=seed, **arguments
    )


def put(shard, values):
    """Store rows with these weights, ids 0 .. n-1, rounded as the store does; return what it holds."""
    ids = np.arange(len(values), dtype=np.uint64)
    shard.load(
        "a", RowChunk("a", ids, values, np.zeros((len(values), shard.groups[0].plan.width), np.float32))
    )
    return shard.peek("a", ids)[0]


def exact(values, dtype):
    """Whether float32 values are numbers of a format."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return bool((tensor.to(TORCH[dtype]).float() == tensor).all())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [1, 2, 15, 16, 33])
def test_every_16_bit_number_is_kept_exactly(dtype, dim):
    bits = torch.arange(0, 1 << 16, dtype=torch.int32).to(torch.uint16).view(TORCH[dtype])
    numbers = bits[torch.isfinite(bits)].float().numpy()
    values = np.resize(numbers, (-(-len(numbers) // dim), dim))
    np.testing.assert_array_equal(put(one(dim, dtype), values).view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_goes_to_a_neighbour_and_is_right_on_average(dtype):
    """Over sizes from the smallest subnormal numbers to the largest, as often up as the fraction says."""
    rng = np.random.default_rng(1)
    low, high = (-26, 15.9) if dtype == "float16" else (-120, 120)
    sizes = (np.exp2(rng.uniform(low, high, 40)) * rng.choice([-1, 1], 40)).astype(np.float32)
    copies = 4096
    found = put(one(40, dtype), np.tile(sizes, (copies, 1)))
    assert exact(found, dtype)
    for k, x in enumerate(sizes):
        values, counts = np.unique(found[:, k], return_counts=True)
        assert len(values) <= 2
        assert values[0] <= x <= values[-1]
        if len(values) == 2:
            neighbour = torch.nextafter(
                torch.tensor(values[0]).to(TORCH[dtype]), torch.tensor(values[1]).to(TORCH[dtype])
            )
            assert float(neighbour) == values[1]
            share = (np.float64(x) - values[0]) / (np.float64(values[1]) - values[0])
            deviation = np.sqrt(share * (1 - share) / copies)
            assert abs(counts[1] / copies - share) < 5 * deviation + 1 / copies


@pytest.mark.parametrize("dtype", HALVES)
def test_random_bits_of_rows_columns_and_updates_are_independent(dtype):
    """The mean over columns, over rows and over time of many roundings is right to its standard error."""
    shard = one(64, dtype)
    weights = put(shard, np.ones((256, 64), np.float32))
    ids = np.arange(256, dtype=np.uint64)
    step = np.float32(HIDDEN[dtype])  # a quarter of the distance of the numbers above 1
    ups = []
    for _ in range(32):
        shard.update("a", ids, np.full((256, 64), -step / 2, np.float32))
        after = shard.peek("a", ids)[0]
        ups.append(after > weights)
        weights = after
    ups = np.array(ups[:8], float)
    assert abs(ups.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / ups.size)
    for axis, others in ((0, 256 * 64), (1, 8 * 64), (2, 8 * 256)):
        means = ups.mean(axis=tuple(a for a in range(3) if a != axis))
        assert np.abs(means - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / others)


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    covering([SGD(lr=1.0), Adagrad(lr=1.0, initial_accumulator=1e6), Adam(lr=2e-4)], HALVES),
    ids=lambda value: getattr(value, "name", value),
)
def test_many_tiny_updates_are_not_lost(optimizer, dtype):
    """Each step is below half a unit in the last place: rounding to nearest would stand still."""
    size, steps, lanes = {"sgd": 2e-4, "adagrad": 0.2, "adam": 1.0}[optimizer.name], 1000, 64
    shard, wide = (one(lanes, d, optimizer=optimizer) for d in (dtype, "float32"))
    for s in (shard, wide):
        put(s, np.ones((16, lanes), np.float32))
        start = plan(optimizer, lanes).layout.state_start
        chunk = next(s.export("a"))
        chunk.state[:, : plan(optimizer, lanes).layout.state] = start
        s.load("a", chunk)
    ids = np.arange(16, dtype=np.uint64)
    gradient = np.full((16, lanes), size, np.float32)
    for _ in range(steps):
        shard.update("a", ids, gradient)
        wide.update("a", ids, gradient)
    expected = wide.peek("a", ids)[0]
    moved, should = 1 - shard.peek("a", ids)[0].mean(), 1 - expected.mean()
    assert should > 0.15
    assert should / steps < HIDDEN[dtype] / 2
    assert abs(moved - should) < 0.02 * should


@pytest.mark.parametrize("dtype", HALVES)
def test_equal_requests_give_equal_bytes_and_another_seed_gives_others(dtype):
    rng = np.random.default_rng(0)
    requests = [(rng.integers(0, 99, 60).astype(np.uint64), rng.standard_normal((60, 20))) for _ in range(20)]

    def run(seed):
        shard = one(20, dtype, optimizer=Adam(lr=0.01), seed=seed)
        for ids, gradients in requests:
            shard.lookup("a", ids)
            shard.update("a", ids, gradients.astype(np.float32))
        return np.concatenate([c.weights for c in shard.export("a")])

    np.testing.assert_array_equal(run(1), run(1))
    assert (run(1) != run(2)).mean() > 0.9


@pytest.mark.parametrize("dtype", HALVES)
def test_initial_rows_are_numbers_of_the_format_and_pure(dtype):
    ids = np.arange(500, dtype=np.uint64)
    shard = one(24, dtype, seed=4)
    promised = shard.peek("a", ids)[0]
    rows = shard.lookup("a", ids[::-1].copy())[::-1]
    np.testing.assert_array_equal(rows, promised)
    assert exact(rows, dtype)
    np.testing.assert_allclose(
        rows, one(24, "float32", seed=4).lookup("a", ids), rtol=2 * HIDDEN[dtype], atol=6e-8
    )
    assert abs(rows.mean()) < 2e-4


@pytest.mark.parametrize("dtype", HALVES)
def test_a_weight_never_becomes_infinite(dtype):
    shard = one(20, dtype, optimizer=SGD(lr=1.0))
    ids = np.arange(3, dtype=np.uint64)
    shard.lookup("a", ids)
    for _ in range(3):
        shard.update("a", ids, np.full((3, 20), -3e38, np.float32))
    np.testing.assert_array_equal(shard.peek("a", ids)[0], np.float32(LARGEST[FORMATS[dtype]]))


@pytest.mark.parametrize(
    ("optimizer", "dim", "dtype", "row_bytes"),
    [
        (SGD(lr=1), 16, "float32", 64),
        (SGD(lr=1), 16, "bfloat16", 32),
        (SGD(lr=1), 5, "float16", 12),
        (RowWiseAdagrad(lr=1), 16, "float16", 36),
        (RowWiseAdagrad(lr=1), 16, "float32", 68),
        (Adagrad(lr=1), 16, "bfloat16", 96),
        (Adam(lr=1), 16, "bfloat16", 164),
        (Adam(lr=1), 16, "float32", 196),
    ],
)
def test_bytes_per_row(optimizer, dim, dtype, row_bytes):
    assert one(dim, dtype, optimizer=optimizer).groups[0].row_bytes == row_bytes


def test_state_begins_at_a_multiple_of_four_bytes():
    assert [padded_bytes(FORMATS["float16"], dim) for dim in (1, 2, 3)] == [4, 4, 8]


@pytest.mark.parametrize("source", ["float32", *HALVES])
@pytest.mark.parametrize("target", ["float32", *HALVES])
def test_rows_move_between_formats(source, target):
    """To its own format, or to float32, exactly; to another one, rounded to a neighbour."""
    first = one(10, source, optimizer=Adagrad(lr=0.1))
    ids = np.arange(300, dtype=np.uint64)
    first.lookup("a", ids)
    first.update("a", ids, np.random.default_rng(0).standard_normal((300, 10)).astype(np.float32))
    second = one(10, target, optimizer=Adagrad(lr=0.1), seed=9)
    for chunk in first.export("a"):
        second.load("a", chunk)
    before, after = first.peek("a", ids)[0], second.peek("a", ids)[0]
    if target in (source, "float32"):
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_allclose(after, before, rtol=2 * HIDDEN[target], atol=6e-8)
    states = (np.concatenate([c.state for c in s.export("a")]) for s in (first, second))
    np.testing.assert_array_equal(*states)


def test_tables_of_other_formats_are_other_groups_and_an_unknown_one_is_refused():
    tables = [Table("a", dim=4), Table("b", dim=4, dtype="float16"), Table("c", dim=4)]
    assert [g.tables for g in Shard(tables, optimizer=SGD(lr=1)).groups] == [("a", "c"), ("b",)]
    with pytest.raises(ConfigError, match="dtype 'float8' is unknown"):
        Table("a", dim=4, dtype="float8")
