import resource

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.store.memory import Reserved, machine_bytes


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


def test_less_is_granted_when_so_much_is_not_to_be_had():
    reserved = Reserved(1 << 60)
    assert 1 << 20 <= reserved.size < 1 << 60
    reserved.array(np.uint8)[0] = 1


def test_an_impossible_size_is_an_error(monkeypatch):
    def refuse(*_args, **_keywords):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(StoreError, match="grants no memory"):
        Reserved(1 << 30)
