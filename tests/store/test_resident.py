"""Many times the budget of inserts in a process of its own: what it has resident stays inside the budget."""

import subprocess
import sys

import pytest

from tests.support.examples import THOROUGH

MEMORY = 96 << 20
"""Small ones are not held to the last percent: the process itself takes some hundred kilobytes more."""

PROGRAM = """
import resource, sys, tempfile
import numpy as np
from satrap.optim import Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Eviction, Shard, Tier

dim, tables, memory, tier, times, dtype, policy = *map(int, sys.argv[1:6]), *sys.argv[6:]
optimizer = Adam(lr=0.1) if policy == "lfu" else RowWiseAdagrad(lr=0.1)
names = [f"t{t}" for t in range(tables)]
rng, step = np.random.default_rng(0), 4000
out, gradients = np.zeros((step, dim), np.float32), np.ones((step, dim), np.float32)
share = step // tables
splits = np.array([share * t for t in range(tables)] + [step])


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def shard(memory, tier):
    file = Tier(tempfile.gettempdir(), tier) if tier else None
    eviction = Eviction(policy, ttl=10**6 if policy == "ttl" else None)
    made = [Table(name, dim=dim, dtype=dtype) for name in names]
    return Shard(made, optimizer=optimizer, memory=memory, eviction=eviction, tier=file, threads=1)


def fill(store, rows):
    for _ in range(rows // step):
        ids = rng.integers(0, 2**64, step, np.uint64)
        store.lookup_group(0, ids, splits, out)
        store.update_group(0, ids, splits, gradients)


small = shard(4 << 20, min(tier, 4 << 20))  # compiled code, and what a request needs besides rows
fill(small, 40 * step)
before, store = resident(), shard(memory, tier)
rows = store.groups[0].directory.room
if tier:
    rows += store.groups[0].backend.cold.directory.room
fill(store, times * rows)
found = store.statistics()
print(rows, found.rows, found.bytes, resident() - before)
"""


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("dim", "dtype", "policy", "tables", "tier"),
    [
        pytest.param(4, "float32", "lfu", 1, 0, marks=pytest.mark.slow),
        pytest.param(4, "float32", "lru", 16, 0, marks=pytest.mark.slow),
        (16, "float32", "lfu", 16, 0),
        pytest.param(16, "bfloat16", "ttl", 1, 0, marks=pytest.mark.slow),
        pytest.param(16, "float32", "lru", 1, 0, marks=pytest.mark.slow),
        pytest.param(64, "float16", "lru", 1, 0, marks=pytest.mark.slow),
        pytest.param(16, "float32", "lru", 1, 200 << 20, marks=pytest.mark.slow),
        pytest.param(64, "bfloat16", "lru", 16, 300 << 20, marks=pytest.mark.slow),
    ],
)
def test_resident_memory_stays_under_the_budget(dim, dtype, policy, tables, tier):
    times = 2 if tier else 10 if THOROUGH else 3
    command = [sys.executable, "-c", PROGRAM, *map(str, (dim, tables, MEMORY, tier, times)), dtype, policy]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout
    room, rows, counted, resident = (int(number) for number in answer.split())
    print(
        f"{dim} {dtype} {policy} {tables} {tier}: {rows} rows, {resident / MEMORY:.3f} of the budget resident"
    )
    assert rows > 0.97 * room
    assert counted <= MEMORY
    assert 0.75 * MEMORY < resident < MEMORY
