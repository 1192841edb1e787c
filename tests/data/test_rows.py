import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from satrap import Batch, Jagged
from satrap.data.rows import concat_rows, slice_rows, take_rows
from satrap.data.window import Mark, Rows
from tests.data.helpers_data import same

BAGS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4), min_size=1, max_size=12)


def batch_of(bags):
    counts = np.array([0, *map(len, bags)], np.int64)
    values = np.array([v for bag in bags for v in bag], np.uint64)
    single = np.arange(len(bags), dtype=np.uint64)
    ids = {"m": Jagged(values, np.cumsum(counts)), "s": Jagged(single)}
    return Batch(len(bags), ids, numeric=single.astype(np.float32)[:, None])


def bags_of(batch):
    jagged = batch.ids["m"]
    return [jagged.values[a:b].tolist() for a, b in zip(jagged.offsets, jagged.offsets[1:], strict=False)]


@given(BAGS, st.data())
def test_take_slice_and_concat_equal_lists(bags, data):
    batch = batch_of(bags)
    order = data.draw(st.lists(st.integers(0, len(bags) - 1)))
    taken = take_rows(batch, np.array(order, np.int64))
    assert bags_of(taken) == [bags[i] for i in order]
    assert taken.ids["s"].values.tolist() == taken.numeric[:, 0].tolist() == order
    cut = data.draw(st.integers(0, len(bags)))
    parts = [slice_rows(batch, 0, cut), slice_rows(batch, cut, len(bags))]
    assert [bags_of(part) for part in parts] == [bags[:cut], bags[cut:]]
    assert same(concat_rows(parts), batch)


@given(st.lists(BAGS, max_size=5), st.lists(st.integers(1, 9), min_size=1), st.integers(0, 20))
def test_a_window_gives_all_rows_in_order_and_knows_where_it_stands(pieces, amounts, ahead):
    encoded = [(batch_of(bags), [i]) for i, bags in enumerate(pieces)]
    everything = [bag for bags in pieces for bag in bags]
    rows, seen, turn = Rows(iter(encoded), Mark()), [], 0
    while (batch := rows.take(amounts[turn % len(amounts)])) is not None:
        seen += bags_of(batch)
        rows.fill(ahead)
        mark = rows.mark
        again = Rows(iter(encoded[mark.cursor[0] :]), mark).take(10**6)
        assert (bags_of(again) if again else []) == everything[len(seen) :]
        turn += 1
    assert seen == everything
