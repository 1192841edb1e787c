"""The thread of an exchange serves calls in their order, and refuses them once it is shut down."""

import time

import pytest

from satrap.errors import StoreError
from satrap.exchange.serial import Serial


def test_it_serves_in_order_until_it_is_shut_down() -> None:
    thread, order = Serial("one"), list[int]()
    for number in range(5):
        thread.submit(lambda n: (time.sleep(0.001 * (5 - n)), order.append(n)), number)
    thread.shutdown(wait=True)
    assert order == [0, 1, 2, 3, 4]
    with pytest.raises(StoreError, match="the store is closed"):
        thread.submit(order.append, 5)
