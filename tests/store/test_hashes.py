import numpy as np

from satrap.store.hashes import BUCKETS, bucket_of, canonical_order, index_salt, row_seed


def test_buckets_are_fixed_for_ever():
    ids = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
    assert bucket_of("user", ids).tolist() == [2697, 3816, 3604, 1206, 3917]
    assert int(index_salt("user")) == 14720306489040170987


def test_buckets_are_even_and_differ_between_tables():
    ids = np.arange(400_000, dtype=np.uint64)
    counts = np.bincount(bucket_of("user", ids), minlength=BUCKETS)
    assert len(counts) == BUCKETS
    assert abs(counts.std() / np.sqrt(counts.mean()) - 1) < 0.1  # as even as chance
    assert (bucket_of("user", ids) == bucket_of("item", ids)).mean() < 0.001


def test_row_seeds_differ_by_seed_and_table():
    assert len({int(row_seed(s, t)) for s in range(5) for t in ("a", "b", "ab")}) == 15


def test_canonical_order_is_bucket_then_id():
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.unique(rng.integers(0, 2**64, 5000, np.uint64)))
    for buckets in (rng.integers(0, BUCKETS, len(ids)), rng.integers(4090, 4096, len(ids))):
        order = canonical_order(ids, buckets.astype(np.int32))
        np.testing.assert_array_equal(order, np.lexsort((ids, buckets)))
    assert len(canonical_order(ids[:0], np.empty(0, np.int32))) == 0
