"""Arrays as message parts."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.servers.chunk_message import pack_arrays, unpack_arrays
from satrap.rpc.wire.frames import FrameError
from satrap.rpc.wire.text import pack_text


@pytest.mark.parametrize("sizes", [[], [0], [3], [40, 0, 1]])
def test_arrays_come_whole_out_of_their_parts(sizes: list[int]) -> None:
    arrays = {f"a{i}": np.arange(n, dtype=np.uint64) * 3 + i for i, n in enumerate(sizes)}
    whole = unpack_arrays(pack_arrays(arrays))
    assert whole.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole[name], array)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [pack_text({})],
        [pack_text({"arrays": {"a": ["<u8", [2]]}})],
        [pack_text({"arrays": {"a": ["<u8", [2]]}}), b"123"],
        [pack_text({"arrays": {"a": ["|O", [2]]}}), b"123"],
        [pack_text({"arrays": {"a": ["<u8", [-2]]}}), b""],
    ],
)
def test_arrays_that_cannot_be_meant_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(FrameError):
        unpack_arrays(parts)
