import gc

import numpy as np
import torch

from satrap.store.memory.buffers import KEPT, SMALLEST, Buffers
from satrap.store.memory.reserve import HUGE

ROWS = SMALLEST // 64 + 1


def place(array):
    return array.ctypes.data


def test_memory_is_used_again_when_the_array_is_gone():
    buffers = Buffers()
    first = buffers.floats(ROWS, 16)
    where = place(first)
    first[:] = 1
    del first
    gc.collect()
    again = buffers.floats(ROWS + 1, 16)
    assert place(again) == where
    assert (again.shape, again.dtype) == ((ROWS + 1, 16), np.float32)


def test_the_memory_used_last_is_used_first():
    buffers = Buffers()
    arrays = [buffers.floats(ROWS, 16), buffers.floats(ROWS, 16), buffers.floats(64 * ROWS, 16)]
    where = [place(array) for array in arrays]
    for _ in range(3):
        del arrays[0]
        gc.collect()
    again = [buffers.floats(ROWS, 16), buffers.floats(ROWS, 16)]
    assert [place(array) for array in again] == [where[1], where[0]]
    assert place(buffers.floats(64 * ROWS, 16)) == where[2]


def test_views_and_tensors_keep_the_memory():
    buffers = Buffers()
    array = buffers.floats(ROWS, 16)
    where = place(array)
    tensor, view = torch.from_numpy(array[:10]), array[20:][5:]
    del array
    gc.collect()
    assert place(buffers.floats(ROWS, 16)) != where
    del tensor
    gc.collect()
    assert place(buffers.floats(ROWS, 16)) != where
    del view
    gc.collect()
    found = {place(a) for a in [buffers.floats(ROWS, 16) for _ in range(KEPT)]}
    assert where in found


def test_arrays_in_use_never_overlap():
    buffers = Buffers()
    arrays = [buffers.floats(ROWS, 16) for _ in range(5)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert [set(a.ravel().tolist()) for a in arrays] == [{i} for i in range(5)]


def test_what_is_kept_is_bounded():
    buffers = Buffers()
    arrays = [buffers.floats(ROWS, 16) for _ in range(3 * KEPT)]
    arrays.clear()
    gc.collect()
    buffers.floats(64 * ROWS, 16)
    assert len(buffers._free) <= KEPT + 1


def test_a_small_array_does_not_take_a_large_buffer():
    buffers = Buffers()
    large = buffers.floats(64 * ROWS, 16)
    where = place(large)
    del large
    gc.collect()
    assert place(buffers.floats(ROWS, 16)) != where
    assert buffers.floats(3, 4).flags.owndata


def test_an_array_takes_no_more_memory_than_it_needs():
    buffers = Buffers()
    array = buffers.floats(64 * ROWS, 16)
    size = array.nbytes
    del array
    gc.collect()
    [kept] = buffers._free
    assert size <= kept.size <= size + size // 16 + HUGE
