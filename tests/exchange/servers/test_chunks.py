"""Arrays in pages."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.servers import chunks
from satrap.exchange.servers.chunks import Pages, pack_arrays, pack_page, pages_of, unpack_arrays
from satrap.exchange.servers.frames import FrameError
from satrap.exchange.servers.payload import pack_text


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PAGE_BYTES", 100)


@pytest.mark.parametrize("sizes", [[], [0], [3], [40, 0, 1], [25, 25, 200]])
def test_arrays_come_whole_out_of_their_pages(sizes: list[int]) -> None:
    arrays = {f"a{i}": np.arange(n, dtype=np.uint64) * 3 + i for i, n in enumerate(sizes)}
    parts, pages = pack_arrays(arrays), Pages()
    for _ in range(2):
        found = [pages.add(pack_page(parts, page)) for page in range(pages_of(parts))]
        assert all(one is None for one in found[:-1])
        assert found[-1] is not None
        whole = unpack_arrays(found[-1])
        assert whole.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(whole[name], array)
    assert max(len(pack_page(parts, page)[1]) for page in range(pages_of(parts))) <= 100


def test_a_page_out_of_order_or_of_another_size_is_refused() -> None:
    parts = pack_arrays({"a": np.arange(40)})
    for *good, wrong in ([1], [0, 2], [0, 1, 1]):
        pages = Pages()
        for page in good:
            pages.add(pack_page(parts, page))
        with pytest.raises(FrameError, match="out of order"):
            pages.add(pack_page(parts, wrong))
    for message in (
        [],
        [pack_text({"page": 0})],
        [pack_text({"page": 0}), b""],
        [pack_text({"page": 0, "sizes": [-1]}), b""],
        [pack_text({"page": 0, "sizes": [2]}), b"123"],
        [pack_text({"page": 0, "sizes": [200]}), b"123"],
    ):
        with pytest.raises(FrameError):
            Pages().add(message)
