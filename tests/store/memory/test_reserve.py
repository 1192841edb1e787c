import resource

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.runtime.machine_limits import machine_bytes
from satrap.store.memory.reserve import Reserved


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_reserved_memory_costs_nothing_until_it_is_touched():
    before = resident()
    reserved = Reserved(machine_bytes())
    array = reserved.array(np.float32)
    assert array.nbytes == machine_bytes() // 4 * 4
    assert resident() - before < 8 << 20
    array[: 16 << 20 >> 2] = 1
    assert 16 << 20 <= resident() - before < 32 << 20
    assert array[0] == 1
    assert array[-1] == 0


@pytest.mark.parametrize("size", [1 << 60, 10**30])
def test_all_is_granted_or_nothing(size):
    with pytest.raises(StoreError, match="does not grant") as raised:
        Reserved(size)
    assert "embedding.memory" in raised.value.fix


def test_no_array_is_longer_than_its_memory():
    reserved = Reserved(1 << 20)
    assert len(reserved.array(np.float32, 1 << 18)) == 1 << 18
    with pytest.raises(AssertionError):
        reserved.array(np.float32, (1 << 18) + 1)
