"""Random sequences of requests against a dict of NumPy rows: equal to the bit after every one of them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from satrap.optim import SGD, Adagrad, RowWiseAdagrad
from satrap.schema import DTYPES, Table
from satrap.store import Eviction, Shard
from tests.store.model import Model
from tests.store.requests import ALL, KEYS, OPTIMIZERS, SEED, STRICT, TABLE, Requests, ids, stacked
from tests.support.covering import covering
from tests.support.examples import examples


class Bounded(Requests):
    """The same with a budget: some rows go. The log of the store says which, and everything else follows."""

    def __init__(self, optimizer, dtype, dim, admission, eviction):
        self.eviction, self.rows = eviction, 70
        super().__init__(optimizer, dtype, dim, admission)
        self.last, self.known = {}, 0

    def open(self):
        return super().open(eviction=self.eviction, memory=self.memory_for(self.rows))

    def follow(self, directory, step):
        """Let go in the model what has gone in the store: nothing that is in use."""
        names = self.shard.groups[0].tables
        for key, t, _ in zip(*directory.taken(self.known), strict=True):
            used = self.last.pop((names[t], int(key)))
            assert used != step
            if self.eviction.ttl is not None and directory.room > 0:
                assert (step - used) % 2**32 > self.eviction.ttl
            self.model.evict(names[t], int(key))
        self.known = directory.reassigned

    def looked_up(self, table, keys):
        before = set(self.model.tables[table].rows)
        mine, directory = self.shard.lookup(table, ids(keys)), self.shard.groups[0].directory
        if (ttl := self.eviction.ttl) is not None:  # what it gives up first need not be admitted again
            before = {k for k in before if (directory.step - self.last[table, k]) % 2**32 <= ttl}
        found = dict(zip(keys, self.shard.peek(table, ids(keys))[1].tolist(), strict=True))
        self.follow(directory, directory.step)
        assert all(found[k] for k in keys if k in before)
        model = self.model.tables[table]
        made = [k for k in keys if found[k] and k not in model.rows]
        np.testing.assert_array_equal(mine, self.model.lookup(table, keys, found.__getitem__))
        # an id that is named twice and found no room may find it the second time
        refused = self.shard.statistics().tables[table].refused
        assert 0 <= refused - model.counts["refused"] <= len(made) - len(set(made))
        model.counts["refused"] = refused
        self.last |= {(table, k): directory.step for k in keys if found[k]}

    @rule(table=TABLE, keys=KEYS)
    def lookup(self, table, keys):
        self.looked_up(table, keys)

    @rule(table=TABLE, seed=SEED, count=st.integers(1, 80), most=st.sampled_from([60, 300]))
    def lookup_many(self, table, seed, count, most):
        self.looked_up(table, np.random.default_rng(seed).integers(0, most, count).tolist())

    @rule(table=TABLE, seed=SEED)
    def update_many(self, table, seed):
        keys = np.random.default_rng(seed).integers(0, 60, 40).tolist()
        self.update(table, keys, seed, 1.0, False, 1.0)

    @rule(chunk_rows=st.integers(1, 30), rows=st.sampled_from([70, 100]))
    def move_to_another_store(self, chunk_rows, rows):
        self.rows = max(rows, self.rows)
        other = self.open()
        directory = other.groups[0].directory
        self.known, self.last, gone = 0, {}, dict.fromkeys("ab", 0)
        for table in self.model.tables.values():
            table.counts.update(dict.fromkeys(table.counts, 0))
        for table in "ab":
            for chunk in self.shard.export(table, chunk_rows=chunk_rows):
                other.load(table, chunk)
                self.follow(directory, directory.step)
                self.last |= {(table, k): directory.step for k in chunk.ids.tolist()}
        for name, table in self.model.tables.items():
            gone[name] = table.counts["evicted"]
            table.counts["created"] = len(table.rows) + gone[name]
        other.groups[0].updates = self.model.updates
        self.shard.close()
        self.shard = other
        self.model.forget_uses()
        self.model.requests = 0

    @rule()
    def go_on_elsewhere(self):
        """With the state, so that the other store evicts what this one would have."""
        self.move()
        for table in self.model.tables.values():
            table.counts.update(dict.fromkeys(table.counts, 0))

    @rule()
    def clear(self):
        super().clear()
        self.last, self.known = {}, 0

    @invariant()
    def bounded(self):
        group = self.shard.groups[0]
        assert set(self.last) == {(n, k) for n, t in self.model.tables.items() for k in t.rows}
        assert len(self.last) + group.directory.room == group.directory.limit <= 1.5 * self.rows


def run(optimizer, dtype, dim, admission, examples, steps, eviction=None):
    made = (optimizer, dtype, dim, admission)
    run_state_machine_as_test(
        lambda: Requests(*made) if eviction is None else Bounded(*made, eviction),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def named(value):
    return getattr(value, "policy", value if isinstance(value, str) else repr(value))


@pytest.mark.parametrize(("optimizer", "dtype"), covering(OPTIMIZERS, DTYPES), ids=named)
def test_random_requests_equal_the_model(optimizer, dtype):
    run(optimizer, dtype, 19, ALL, examples=4, steps=20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_requests_with_admission_equal_the_model(dtype):
    run(RowWiseAdagrad(lr=0.1), dtype, 3, STRICT, examples=examples(10), steps=20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [7, 16, 31])
def test_the_norm_that_clips_is_that_of_the_gradient_alone(dtype, dim):
    """Its last numbers, fewer than a vector holds, are read one by one."""
    optimizer, keys = SGD(lr=0.1, momentum=0.5, clip=1.0), list(range(200))
    tables = [Table("a", dim=dim, dtype=dtype, initial_scale=0.05)]
    shard, model = Shard(tables, optimizer=optimizer, seed=3), Model(tables, optimizer, seed=3, admission=ALL)
    shard.lookup("a", ids(keys))
    model.lookup("a", keys)
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradients = rng.standard_normal((len(keys), dim)).astype(np.float32)
        shard.update("a", ids(keys), gradients)
        model.update("a", keys, gradients, 1.0)
    for chunk in shard.export("a"):
        rows = [model.tables["a"].rows[key] for key in chunk.ids.tolist()]
        np.testing.assert_array_equal(chunk.state, stacked([row[1] for row in rows], chunk.state))
    shard.close()


POLICIES = [Eviction("lru"), Eviction("lfu"), Eviction("ttl", ttl=6)]


@pytest.mark.parametrize(
    ("optimizer", "eviction", "dtype"), covering([OPTIMIZERS[5], OPTIMIZERS[7]], POLICIES, DTYPES), ids=named
)
def test_random_requests_with_eviction_equal_the_model(optimizer, dtype, eviction):
    run(optimizer, dtype, 3, ALL, examples=3, steps=25, eviction=eviction)


@pytest.mark.parametrize("eviction", POLICIES, ids=lambda e: e.policy)
def test_random_requests_with_eviction_and_admission_equal_the_model(eviction):
    run(Adagrad(lr=0.1), "bfloat16", 5, STRICT, examples=5, steps=25, eviction=eviction)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("eviction", POLICIES, ids=lambda e: e.policy)
@pytest.mark.parametrize("admission", [ALL, STRICT], ids=["all", "strict"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_long_random_requests_with_eviction_equal_the_model(optimizer, dtype, admission, eviction):
    run(optimizer, dtype, 7, admission, examples=10, steps=50, eviction=eviction)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("admission", [ALL, STRICT], ids=["all", "strict"])
@pytest.mark.parametrize("dim", [1, 16, 37])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_long_random_requests_equal_the_model(optimizer, dtype, dim, admission):
    run(optimizer, dtype, dim, admission, examples=20, steps=50)
