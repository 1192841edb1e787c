"""Which new ids get a row, and that the others harm nobody."""

import numpy as np
import pytest

from satrap.errors import ConfigError
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Admission, Shard
from satrap.store.admission import LINES, AdmissionGate

U = np.uint64


def one(admission, dim=2, **arguments):
    return Shard([Table("a", dim=dim)], optimizer=SGD(lr=1.0), admission=admission, **arguments)


def ids(*values):
    return np.array(values, U)


def counts(shard, table="a"):
    return shard.statistics().tables[table]


def test_the_row_is_created_by_the_use_that_reaches_the_count():
    shard = one(Admission(min_count=3))
    for use in range(1, 5):
        shard.lookup("a", ids(7))
        assert shard.peek("a", ids(7))[1].tolist() == [use >= 3]
    expected = {"rows": 1, "created": 1, "hits": 1, "misses": 3, "unadmitted": 2, "dropped": 0}
    assert {key: getattr(counts(shard), key) for key in expected} == expected


def test_an_id_named_twice_in_a_request_is_used_once():
    shard = one(Admission(min_count=2))
    rows = shard.lookup("a", ids(7, 8, 7, 7))
    np.testing.assert_array_equal(rows, shard.peek("a", ids(7, 8, 7, 7))[0])
    assert counts(shard).unadmitted == 2
    assert counts(shard).rows == 0


def test_an_id_that_is_not_admitted_reads_its_initial_row():
    strict, open_ = one(Admission(min_count=2), seed=5), one(None, seed=5)
    np.testing.assert_array_equal(strict.lookup("a", ids(1, 2, 3)), open_.lookup("a", ids(1, 2, 3)))
    np.testing.assert_array_equal(strict.lookup("a", ids(1, 2, 3)), open_.lookup("a", ids(1, 2, 3)))
    assert counts(strict).created == 3


def test_gradients_of_ids_without_a_row_reach_no_neighbour():
    """PERSIA applied each later gradient of such a request to the row before."""
    shard = one(Admission(min_count=2))
    missing, a, b = 1, 2, 3
    shard.lookup("a", ids(a, b))
    before = shard.lookup("a", ids(a, b))
    rows = shard.lookup("a", ids(missing, a, b))
    gradients = np.array([[1, 1], [2, 2], [3, 3]], np.float32)
    shard.update("a", ids(missing, a, b), gradients)
    after, found = shard.peek("a", ids(missing, a, b))
    assert found.tolist() == [False, True, True]
    np.testing.assert_array_equal(after[0], rows[0])
    np.testing.assert_allclose(before - after[1:], gradients[1:], rtol=1e-6)
    assert counts(shard).dropped == 1


def test_peeks_and_updates_are_no_uses():
    shard = one(Admission(min_count=2))
    shard.lookup("a", ids(1))
    for _ in range(5):
        shard.peek("a", ids(1))
        shard.update("a", ids(1), np.ones((1, 2), np.float32))
    assert not shard.peek("a", ids(1))[1][0]
    assert counts(shard).dropped == 5


def test_tables_of_a_group_count_apart():
    shard = Shard(
        [Table("a", dim=2), Table("b", dim=2)], optimizer=SGD(lr=1), admission=Admission(min_count=2)
    )
    splits = np.array([0, 2, 3])
    shard.lookup_group(0, ids(1, 2, 1), splits)
    shard.lookup("a", ids(1))
    assert shard.peek("a", ids(1, 2))[1].tolist() == [True, False]
    assert not shard.peek("b", ids(1))[1][0]


def test_probability_admits_that_share_of_uses():
    shard = one(Admission(probability=0.2))
    keys = np.arange(20_000, dtype=U)
    left = 1.0
    for _ in range(3):
        shard.lookup("a", keys)
        left *= 0.8
        share = 1 - shard.peek("a", keys)[1].mean()
        assert abs(share - left) < 5 * np.sqrt(left * (1 - left) / len(keys))


def test_coins_are_the_same_for_the_same_seed_table_id_and_request():
    def admitted(order, seed=1):
        shard = one(Admission(probability=0.5), seed=seed)
        shard.lookup("a", np.arange(1000, dtype=U)[order])
        return shard.peek("a", np.arange(1000, dtype=U))[1]

    forward, backward = slice(None), slice(None, None, -1)
    np.testing.assert_array_equal(admitted(forward), admitted(backward))
    assert 0.4 < (admitted(forward) == admitted(forward, seed=2)).mean() < 0.6


def uses(gate, keys):
    """Use each id once; return which are admitted."""
    return gate.admit(keys, np.array([0, len(keys)]), np.arange(len(keys)))


def test_counts_are_never_too_low_and_seldom_too_high():
    """Until the first halving: t too high with a probability of at most t ** -4, in fact far less."""
    admission = Admission(min_count=4, memory=1 << 16)
    rng = np.random.default_rng(0)
    others = rng.integers(0, 2**63, admission.memory // LINES - 4000).astype(U)
    probe = rng.integers(0, 2**63, 1000).astype(U)
    gate = AdmissionGate(admission, 0, ("a",))
    assert not uses(gate, others).any()
    early = [uses(gate, probe).mean() for _ in range(3)]
    assert early[0] <= 3**-4.0 / 10
    assert early[1] <= 2**-4.0 / 10
    assert early[2] <= 0.2  # one too high
    assert uses(gate, probe).all()


def test_rare_ids_are_forgotten_and_memory_stays():
    admission = Admission(min_count=3, memory=1 << 12)
    gate = AdmissionGate(admission, 0, ("a",))
    rare = np.arange(10, dtype=U)
    uses(gate, rare)
    uses(gate, rare)
    for i in range(1, 11):  # one-time ids, half a width each
        once = np.arange(512, dtype=U) + U(10_000 * i)
        assert uses(gate, once).mean() < 0.2
    assert not uses(gate, rare).any()
    assert gate.bytes == 1 << 12


def test_clear_forgets_uses():
    shard = one(Admission(min_count=2))
    shard.lookup("a", ids(1))
    shard.clear()
    shard.lookup("a", ids(1))
    assert not shard.peek("a", ids(1))[1][0]


def test_the_counts_are_part_of_the_bytes_and_of_the_budget():
    admission = Admission(min_count=2, memory=1 << 20)
    assert one(admission).statistics().bytes - one(None).statistics().bytes == 1 << 20
    assert one(Admission(probability=0.5)).statistics().bytes == one(None).statistics().bytes
    with pytest.raises(ConfigError, match="counts of admission take 1048576 bytes"):
        one(admission, memory=1 << 20)


def test_admitting_all_keeps_no_counts():
    assert one(Admission()).groups[0].gate is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_count": 0}, "min_count must be in 1..255"),
        ({"min_count": 256}, "min_count must be in 1..255"),
        ({"probability": 0.0}, r"probability must be in \(0, 1\]"),
        ({"probability": float("nan")}, "probability must be"),
        ({"memory": 1000}, "memory must be a power of two"),
    ],
)
def test_impossible_rules_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Admission(**arguments)
