"""Random sequences of requests against a dict of NumPy rows: equal to the bit after every one of them."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from satrap.errors import StoreError
from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.schema import DTYPES, Table
from satrap.store import Admission, Eviction, Shard
from satrap.store.steps import plan
from tests.store.model import Model

OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.1, momentum=0.5, nesterov=True, clip=1.0),
    Adagrad(lr=0.1),
    Adagrad(lr=0.1, weight_decay=0.1, initial_accumulator=0.5, bound=0.1),
    RowWiseAdagrad(lr=0.1),
    RowWiseAdagrad(lr=0.1, weight_decay=0.1, clip=0.5),
    Adam(lr=0.01, weight_decay=0.1),
    AdamW(lr=0.01, weight_decay=0.1, bound=0.02),
    FTRL(lr=0.1, l1=0.01, l2=0.1),
]
IDS = [*range(20), 2**32, 2**63, 2**64 - 1]
KEYS = st.lists(st.sampled_from(IDS), max_size=12)
TABLE = st.sampled_from(["a", "b"])
SEED = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1e-30, 1e-3, 1.0, 1.0, 1.0, 100.0, 1e25])


def ids(keys):
    return np.array(keys, np.uint64)


class Requests(RuleBasedStateMachine):
    """Every rule is one request, made of the store and of the model."""

    def __init__(self, optimizer, dtype, dim, admission):
        super().__init__()
        self.tables = [Table(n, dim=dim, dtype=dtype, initial_scale=0.05) for n in ("a", "b")]
        self.optimizer, self.admission, self.dim = optimizer, admission, dim
        self.model = Model(self.tables, optimizer, seed=3, admission=admission)
        self.shard = self.open()

    def open(self, **arguments):
        return Shard(self.tables, optimizer=self.optimizer, seed=3, admission=self.admission, **arguments)

    def move(self):
        """Give rows and state to another store, which takes this one's place."""
        other = self.open()
        other.groups[0].restore(self.shard.groups[0].state())
        for chunk in self.shard.snapshot(chunk_rows=17):
            other.load(chunk.table, chunk)
        self.shard.close()
        self.shard = other

    def memory_for(self, rows):
        """Return a budget that has room for about so many rows."""
        row = plan(self.optimizer, self.dim, self.tables[0].dtype).row_bytes + 28
        gate = 0 if self.admission.open or self.admission.min_count == 1 else self.admission.memory
        return 102_400 + rows * row + gate

    @rule(table=TABLE, keys=KEYS)
    def lookup(self, table, keys):
        np.testing.assert_array_equal(self.shard.lookup(table, ids(keys)), self.model.lookup(table, keys))

    @rule(table=TABLE, keys=KEYS)
    def peek(self, table, keys):
        for mine, expected in zip(
            self.shard.peek(table, ids(keys)), self.model.peek(table, keys), strict=True
        ):
            np.testing.assert_array_equal(mine, expected)

    @rule(
        table=TABLE, keys=KEYS, seed=SEED, size=SIZES, zeros=st.booleans(), scale=st.sampled_from([1.0, 0.3])
    )
    def update(self, table, keys, seed, size, zeros, scale):
        gradients = np.random.default_rng(seed).standard_normal((len(keys), self.dim)).astype(np.float32)
        gradients *= np.float32(size)
        if zeros:
            gradients[:, seed % self.dim] = 0
        self.shard.update(table, ids(keys), gradients, lr_scale=scale)
        self.model.update(table, keys, gradients, scale)

    @rule(table=TABLE, keys=KEYS.filter(bool), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
    def update_that_is_not_finite(self, table, keys, bad):
        gradients = np.ones((len(keys), self.dim), np.float32)
        gradients[-1, -1] = bad
        with pytest.raises(StoreError, match="NaN or infinite"):
            self.shard.update(table, ids(keys), gradients)

    @rule(chunk_rows=st.integers(1, 30))
    def move_to_another_store(self, chunk_rows):
        other = self.open()
        for table in ("a", "b"):
            for chunk in self.shard.export(table, chunk_rows=chunk_rows):
                other.load(table, chunk)
        other.groups[0].updates = self.model.updates
        self.shard.close()
        self.shard = other
        self.model.forget_uses()
        self.model.requests = 0
        for table in self.model.tables.values():
            table.counts.update(dict.fromkeys(table.counts, 0), created=len(table.rows))

    @rule()
    def clear(self):
        self.shard.clear()
        self.model.forget_uses()
        for table in self.model.tables.values():
            table.rows.clear()

    @invariant()
    def equal(self):
        statistics = self.shard.statistics().tables
        for name, table in self.model.tables.items():
            chunks = list(self.shard.export(name))
            assert sorted(k for c in chunks for k in c.ids.tolist()) == sorted(table.rows)
            for chunk in chunks:
                for i, key in enumerate(chunk.ids.tolist()):
                    np.testing.assert_array_equal(chunk.weights[i], table.rows[key][0])
                    np.testing.assert_array_equal(chunk.state[i], table.rows[key][1])
            counts = {k: v for k, v in asdict(statistics[name]).items() if k in table.counts}
            assert counts == table.counts
            assert statistics[name].rows == len(table.rows)

    def teardown(self):
        self.shard.close()


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


ALL, STRICT = Admission(), Admission(min_count=2, probability=0.7, memory=1 << 16)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_random_requests_equal_the_model(optimizer, dtype):
    run(optimizer, dtype, 19, ALL, examples=4, steps=20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_requests_with_admission_equal_the_model(dtype):
    run(RowWiseAdagrad(lr=0.1), dtype, 3, STRICT, examples=10, steps=20)


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
        for key, state in zip(chunk.ids.tolist(), chunk.state, strict=True):
            np.testing.assert_array_equal(state, model.tables["a"].rows[key][1])
    shard.close()


POLICIES = [Eviction("lru"), Eviction("lfu"), Eviction("ttl", ttl=6)]


@pytest.mark.parametrize("eviction", POLICIES, ids=lambda e: e.policy)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", [OPTIMIZERS[5], OPTIMIZERS[7]], ids=repr)
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
