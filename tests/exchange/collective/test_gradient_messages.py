from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange import LookupRequest
from satrap.exchange.collective.gradient_messages import GradientMessages
from satrap.exchange.collective.row_requests import RowRequest
from satrap.exchange.kernels import BFLOAT16, FLOAT32
from satrap.exchange.traffic import Rounding
from tests.contract.parties import request
from tests.exchange.collective.work import GROUPS

WANTED: list[LookupRequest] = [request(1, [7, 8, 9]), request(0, [1, 2], [3])]  # not in order of groups
GIVEN = [np.arange(n * dim, dtype=np.float32).reshape(n, dim) for n, dim in ((3, 17), (3, 4))]


def asks(one: LookupRequest) -> list[RowRequest]:
    """Rank 1 has the last id."""
    n, last = len(one.ids), one.splits.copy()
    last[last < n] = 0
    last[last == n] = 1
    first = np.minimum(one.splits, n - 1)
    return [
        RowRequest(
            one.ids[: n - 1], first, (), np.arange(n - 1, dtype=np.int32), np.arange(n - 1, dtype=np.int32)
        ),
        RowRequest(one.ids[n - 1 :], last, (), *[np.array([n - 1], np.int32)] * 2),
    ]


@pytest.mark.parametrize("number", [5, None])
@pytest.mark.parametrize("code", [FLOAT32, BFLOAT16])
def test_gradients_arrive_in_order_of_groups_divided_by_the_ranks(number: int | None, code: int) -> None:
    pushes = GradientMessages(GROUPS, code, 2, Rounding())
    messages = pushes.pack(number, WANTED, [asks(one) for one in WANTED], GIVEN)
    for rank, count in ((0, 2), (1, 1)):
        push = pushes.unpack(messages[rank])
        assert push.number == number
        assert [ask.ids.tolist() for ask in push.asks if ask] == (
            [] if number else [one.ids[2 * rank : 2 * rank + count].tolist() for one in reversed(WANTED)]
        )
        item = 4 if code == FLOAT32 else 2
        for group, first, whole in ((0, 0, GIVEN[1]), (1, item * 4 * count, GIVEN[0])):
            own = push.take(group, GROUPS[group].dim, first, count)
            np.testing.assert_allclose(
                own, whole[2 * rank : 2 * rank + count] / 2, rtol=0 if item == 4 else 0.01
            )


def test_a_rank_without_gradients_says_so() -> None:
    pushes = GradientMessages(GROUPS, FLOAT32, 3, Rounding())
    for message in pushes.pack(None, [], [], []):
        assert pushes.unpack(message).number is None
        assert not pushes.unpack(message).asks


@pytest.mark.parametrize("wrong", [np.full((3, 17), np.nan, np.float32), np.ones((2, 17), np.float32)])
def test_what_is_wrong_with_gradients_is_said(wrong: np.ndarray) -> None:
    pushes = GradientMessages(GROUPS, FLOAT32, 2, Rounding())
    with pytest.raises(StoreError, match=r"NaN|float32"):
        pushes.pack(1, WANTED, [asks(one) for one in WANTED], [wrong, GIVEN[1]])
