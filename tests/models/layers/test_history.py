"""Operations on the events of samples equal loops over samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from satrap.models.layers.history import TargetedHistory, last_of, segment_softmax, segment_sum, spread
from tests.models.sequence.histories import SCHEMA, make_batch

LENGTHS = [3, 0, 4, 1, 0]
OFFSETS = torch.tensor([0, 3, 3, 7, 8, 8])


def drawn(rows: int, columns: int = 2) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns, dtype=torch.float64, requires_grad=True)


def check(found: Tensor, expected: Tensor, given: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(x, given, upstream)[0] for x in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_sums() -> None:
    x = drawn(8)
    check(segment_sum(x, OFFSETS), torch.stack([part.sum(0) for part in x.split(LENGTHS)]), x)


def test_second_gradients() -> None:
    x = drawn(8)
    assert torch.autograd.gradgradcheck(lambda y: segment_sum(y, OFFSETS).square(), x)
    assert torch.autograd.gradgradcheck(lambda y: spread(y, OFFSETS, 8).square(), drawn(5))


def test_softmax_also_of_large_scores() -> None:
    x = drawn(8)
    expected = torch.cat([torch.softmax(part, 0) for part in x.split(LENGTHS)])
    check(segment_softmax(x, OFFSETS), expected, x)
    found = segment_softmax(x.detach() * 1e5, OFFSETS)
    torch.testing.assert_close(segment_sum(found, OFFSETS)[[0, 2, 3]], torch.ones(3, 2, dtype=torch.float64))


def test_values_of_samples_at_their_events() -> None:
    x = drawn(5)
    expected = torch.cat([x[i].expand(length, -1) for i, length in enumerate(LENGTHS)])
    check(spread(x, OFFSETS, 8), expected, x)


def test_last_events() -> None:
    x = drawn(8)
    zeros = x.new_zeros(2)
    check(last_of(x, OFFSETS), torch.stack([x[2], zeros, x[6], x[7], zeros]), x)


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]], ids=str)
def test_no_events(offsets: list[int]) -> None:
    none, bounds = torch.empty(0, 2), torch.tensor(offsets)
    assert (
        segment_sum(none, bounds).tolist() == last_of(none, bounds).tolist() == [[0, 0]] * (len(offsets) - 1)
    )
    assert segment_softmax(none, bounds).shape == (0, 2)


def test_events_and_their_target_have_the_same_columns() -> None:
    history, batch = TargetedHistory(SCHEMA, "Model", ["genre"]), make_batch([2, 1])
    assert (history.pairs, history.context, history.length) == ({"seen": "item"}, ["genre"], 8)
    assert torch.equal(history.target(batch), batch["item"])
    events = history.events(batch)
    assert events.offsets.tolist() == [0, 2, 3]
    assert (events.values.shape, history.width, history.extra) == ((3, 6), 6, 4)
    assert [part.shape for part in history.described(batch)] == [(3, 3), (3, 1)]
