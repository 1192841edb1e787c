"""The contract of row backends: random calls of each of them against a dict of NumPy rows.

All is equal to the bit. A new backend joins `BACKENDS`. What its observers hear is compared, too: with the
rows there are, and with what can be read at that moment.
"""

import tempfile

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import BUCKETS, Admission, Eviction, Slots, Tier
from satrap.store.backend import FAST, RowEvents
from satrap.store.memory.directory import budget
from satrap.store.memory.ram import Ram
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.tier import Tiered
from tests.store.model import GOLDEN, MASK, Model, rounded, start
from tests.store.requests import stacked

U, DIM, TABLES = np.uint64, 5, ("a", "b")
TABLE, SEED = st.integers(0, 1), st.integers(0, 2**32 - 1)
COUNT, MOST = st.integers(0, 120), st.sampled_from([20, 80, 1000])


def ram(kind, folder):
    return Ram(kind, budget(None, kind.plan.row_bytes, kind.plan.stride, 2, None), None, ThreadPool(1))


def evicting(kind, folder, eviction=Eviction(), rows=70):  # noqa: B008
    memory = 102_400 + rows * (kind.plan.row_bytes + 28)
    room = budget(memory, kind.plan.row_bytes, kind.plan.stride, 2, eviction)
    return Ram(kind, room, eviction, ThreadPool(1))


def ageing(kind, folder):
    return evicting(kind, folder, Eviction("ttl", ttl=6))


def tiered(kind, folder, records=5000):
    tier = Tier(folder, records * kind.plan.row_bytes)
    return Tiered(evicting(kind, folder), tier, records, ThreadPool(1))


def scarce(kind, folder):
    return tiered(kind, folder, 50)


BACKENDS = {"ram": ram, "ram, lru": evicting, "ram, ttl": ageing, "ram + ssd": tiered, "scarce ssd": scarce}
LOSING = ("ram, lru", "ram, ttl", "scarce ssd")


class Watch(RowEvents):
    """Follows events: where rows are, and who was announced. Reads what each event says can still be read."""

    def __init__(self, backend, model):
        super().__init__()
        self.backend, self.model = backend, model
        self.places, self.announced, self.used_rows = set(), set(), 0
        backend.observers.add(self)

    def keys(self, rows):
        tables = np.searchsorted(rows.splits, np.arange(len(rows.ids)), side="right") - 1
        assert len(rows.ids) == len(rows.slots) == rows.splits[-1]
        return [(TABLES[t], key) for t, key in zip(tables.tolist(), rows.ids.tolist(), strict=True)]

    def look(self, rows):
        """Compare rows with the model, which is what they were before this request."""
        read = self.backend.parts[rows.part].read(rows.slots)
        at, known = [], []
        for i, (table, key) in enumerate(self.keys(rows)):
            live = (rows.part, int(rows.slots[i])) in self.places
            if live and key in self.model.tables[table].rows:
                at.append(i)
                known.append(self.model.tables[table].rows[key])
        for column, mine in enumerate(read):
            np.testing.assert_array_equal(mine[at], stacked([row[column] for row in known], mine))

    def pairs(self, part, slots):
        return {(part, slot) for slot in slots.tolist() if slot >= 0}

    def made(self, part, slots):
        assert not self.places & self.pairs(part, slots)
        self.places |= self.pairs(part, slots)

    def used(self, part, slots):
        self.used_rows += len(slots)
        assert self.pairs(part, slots) <= self.places

    def changing(self, rows):
        self.look(rows)
        self.announced |= self.pairs(rows.part, rows.slots)

    def moved(self, rows, to, targets):
        self.look(rows)
        assert self.pairs(rows.part, rows.slots) <= self.places
        self.places -= self.pairs(rows.part, rows.slots)
        self.places |= self.pairs(to, targets)

    def gone(self, rows):
        self.look(rows)
        assert self.pairs(rows.part, rows.slots) <= self.places
        self.places -= self.pairs(rows.part, rows.slots)
        for table, key in self.keys(rows):
            self.model.evict(table, key)


class Calls(RuleBasedStateMachine):
    """Every rule is one request as `Group` makes it."""

    def __init__(self, name, optimizer, dtype):
        super().__init__()
        self.name, self.dtype, self.optimizer = name, dtype, optimizer
        tables = [Table(n, dim=DIM, dtype=dtype, initial_scale=0.05) for n in TABLES]
        self.kind, self.folder = RowSpec(tables, optimizer, seed=3), tempfile.TemporaryDirectory()
        self.model = Model(tables, optimizer, seed=3, admission=Admission())
        self.known, self.forgotten = None, np.zeros(2, np.int64)
        self.open()

    def open(self):
        self.backend = BACKENDS[self.name](self.kind, self.folder.name)
        self.watch = Watch(self.backend, self.model)

    def teardown(self):
        self.backend.close()
        self.folder.cleanup()

    def request(self, t, seed, count, most, distinct=False):
        keys = np.random.default_rng(seed).integers(0, most, count).astype(U)
        keys = np.unique(keys) if distinct else keys
        return keys, np.where(np.arange(3) > t, len(keys), 0).astype(np.int64)

    def expected(self, t, keys):
        return self.model.peek(TABLES[t], keys.tolist())

    def there(self, ids, splits):
        found = np.ones(len(ids), bool)
        found[self.backend.find(ids, splits).absent] = False
        return found

    def content(self):
        """Return {(table, id): (part, slot, weights, state)} of all parts."""
        rows = {}
        for number, part in enumerate(self.backend.parts):
            for t, name in enumerate(TABLES):
                ids, slots, _ = part.directory.collect(t, 0, BUCKETS - 1)
                weights, state = part.read(slots)
                for i, (key, slot) in enumerate(zip(ids.tolist(), slots.tolist(), strict=True)):
                    if part.live is None or part.live[slot >> 3] >> (slot & 7) & 1:
                        assert (name, key) not in rows
                        rows[name, key] = number, slot, weights[i], state[i]
        return rows

    @rule(t=TABLE, seed=SEED, count=COUNT, most=MOST, refused=st.integers(2, 9))
    def lookup(self, t, seed, count, most, refused):
        ids, splits = self.request(t, seed, count, most)
        before = set(self.model.tables[TABLES[t]].rows)
        places = self.backend.find(ids, splits, use=True)
        if self.name != "ram, ttl":  # there some may go before they are found
            absent = [i for i, key in enumerate(ids.tolist()) if key not in before]
            assert places.absent.tolist() == absent
        new = places.absent[ids[places.absent] % U(refused) != 0]  # those that admission lets in
        if len(places.missing):
            self.backend.create(ids, splits, places, new)
        table, there = self.model.tables[TABLES[t]], self.there(ids, splits)
        for key in ids[there].tolist():
            if key not in table.rows:
                assert key in ids[new]
                table.rows[key] = [self.model.initial(TABLES[t], key), start(self.model.optimizer, DIM)]
        if self.name not in LOSING:
            assert there[new].all()
        assert (places.slots[places.missing] < 0).all()
        assert there[places.slots >= 0].all()
        expected, found = self.expected(t, ids)
        np.testing.assert_array_equal(there, found)
        wide = np.full((len(ids), 2 * DIM), np.nan, np.float32)
        self.backend.gather(ids, splits, places, wide[:, :DIM])
        np.testing.assert_array_equal(wide[:, :DIM], expected)
        assert np.isnan(wide[:, DIM:]).all()
        if len(set(ids.tolist())) == len(ids):
            directory, complete = self.backend.directory, not len(places.missing)
            self.known = ids, splits, Slots(0, places.slots.copy(), 0, directory.reassigned, complete)

    @rule(t=TABLE, seed=SEED, count=COUNT, most=MOST)
    def peek(self, t, seed, count, most):
        ids, splits = self.request(t, seed, count, most)
        heard = len(self.watch.announced), set(self.watch.places), self.watch.used_rows
        out = np.empty((len(ids), DIM), np.float32)
        places = self.backend.find(ids, splits)
        self.backend.gather(ids, splits, places, out)
        expected, found = self.expected(t, ids)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(np.delete(np.arange(len(ids)), places.absent), np.flatnonzero(found))
        assert heard == (len(self.watch.announced), self.watch.places, self.watch.used_rows)

    def update(self, ids, splits, seed, scale, known=None):
        gradients = np.random.default_rng(seed).standard_normal((len(ids), DIM)).astype(np.float32)
        places, before = self.backend.find(ids, splits, known=known), self.content()
        self.watch.announced.clear()
        self.backend.announce(ids, splits, places)
        noise = (int(self.kind.noise) + (self.model.updates + 1) * GOLDEN) & MASK
        self.backend.step(
            ids, places, self.backend.gradients(gradients, len(ids), DIM), scale, np.uint64(noise)
        )
        self.model.update(TABLES[int(splits[1] == 0)], ids.tolist(), gradients, scale)
        self.told_of_all_that_changed(before)

    def told_of_all_that_changed(self, before):
        after = self.content()
        for key in before.keys() & after.keys():
            if any((x != y).any() for x, y in zip(before[key][2:], after[key][2:], strict=True)):
                assert after[key][:2] in self.watch.announced

    @rule(t=TABLE, seed=SEED, count=COUNT, most=MOST, scale=st.sampled_from([1.0, 0.3]))
    def step(self, t, seed, count, most, scale):
        self.update(*self.request(t, seed, count, most, distinct=True), seed, scale)

    @rule(seed=SEED)
    def step_where_the_rows_were(self, seed):
        if self.known is not None:
            ids, splits, known = self.known
            self.update(ids, splits, seed, 1.0, known)

    @rule(t=TABLE, seed=SEED, count=COUNT, most=MOST)
    def write(self, t, seed, count, most):
        ids, splits = self.request(t, seed, count, most, distinct=True)
        rng, width = np.random.default_rng(seed), self.kind.plan.width
        weights = rng.standard_normal((len(ids), DIM)).astype(np.float32)
        weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # exact in 16 bits, too
        state, before = rng.random((len(ids), width)).astype(np.float32), self.content()
        if isinstance(self.optimizer, Adam):
            state[:, -1] = rng.integers(0, 50, len(ids))  # the row's steps, a whole number
        self.watch.announced.clear()
        lost, there = self.backend.write(ids, splits, weights, state), self.there(ids, splits)
        assert lost == (~there).sum()
        if self.name not in LOSING:
            assert not lost
        for i in np.flatnonzero(there).tolist():
            assert rounded(weights[i], self.dtype, 0).tobytes() == weights[i].tobytes()
            self.model.tables[TABLES[t]].rows[int(ids[i])] = [weights[i].copy(), state[i].copy()]
        self.told_of_all_that_changed(before)

    @rule(t=TABLE, seed=SEED, count=COUNT, most=MOST)
    def expect(self, t, seed, count, most):
        read = self.backend.expect(*self.request(t, seed, count, most))
        assert (read is not None) == bool(self.backend.slower())
        if read is not None:
            read()

    @rule()
    def clear(self):
        before, parts = self.backend.counters(), self.backend.parts
        self.backend.clear()
        assert self.backend.parts is not parts
        for name, counts in self.backend.counters().items():
            np.testing.assert_array_equal(counts, 0 * counts if name == "rows" else before[name])
        for t, table in enumerate(self.model.tables.values()):
            self.forgotten[t] += len(table.rows)
            table.rows.clear()
        self.known = None
        self.watch.places.clear()

    @rule()
    def go_on_elsewhere(self):
        """Another backend that gets the index and the rows holds the same, each row in the same part."""
        image = self.backend.parts[FAST].image
        image = {} if image is None else image()
        before, old = self.content(), self.backend
        self.backend = BACKENDS[self.name](self.kind, self.folder.name)
        self.backend.restore(image)
        for t, name in enumerate(TABLES):
            keys = np.array([key for table, key in before if table == name], U)
            rows = [before[name, key] for key in keys.tolist()]
            widths = {2: DIM, 3: self.kind.plan.width}
            columns = [np.array([r[i] for r in rows], np.float32).reshape(-1, n) for i, n in widths.items()]
            assert not self.backend.write(keys, np.where(np.arange(3) > t, len(keys), 0), *columns)
        old.close()
        self.watch = Watch(self.backend, self.model)
        after = self.content()
        self.watch.places = {row[:2] for row in after.values()}
        assert {key: row[0] for key, row in after.items()} == {key: row[0] for key, row in before.items()}
        counters = self.backend.counters()  # they begin anew
        self.known, self.forgotten = None, counters["created"] - counters["evicted"] - counters["rows"]

    @invariant()
    def rows_and_events_are_those_of_the_model(self):
        rows = self.content()
        wanted = {(name, key): row for name, t in self.model.tables.items() for key, row in t.rows.items()}
        assert rows.keys() == wanted.keys()
        for i, width in enumerate((DIM, self.kind.plan.width)):
            mine = np.array([row[2 + i] for row in rows.values()], np.float32).reshape(len(rows), width)
            np.testing.assert_array_equal(mine, stacked([wanted[key][i] for key in rows], mine))
        assert self.watch.places == {row[:2] for row in rows.values()}
        counters = self.backend.counters()
        assert counters["rows"].tolist() == [len(t.rows) for t in self.model.tables.values()]
        left = counters["created"] - counters["evicted"] - counters["rows"]
        np.testing.assert_array_equal(left, self.forgotten)
        if len(self.backend.parts) > 1:
            assert self.backend.slower().rows == sum(row[0] != FAST for row in rows.values())


def run(name, optimizer, dtype, examples, steps, **options):
    run_state_machine_as_test(
        lambda: Calls(name, optimizer, dtype),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )
