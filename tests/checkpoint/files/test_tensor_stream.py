"""Streamed files have the bytes that safetensors gives to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from satrap.checkpoint.files import tensor_stream
from satrap.checkpoint.files.tensor_stream import DTYPES, streamed
from tests.support.examples import examples

SHAPES = st.lists(st.integers(0, 5), max_size=3)
FILES = st.dictionaries(
    st.text(max_size=3), st.tuples(SHAPES, st.sampled_from([*DTYPES.values()])), max_size=9
)


def filled(shape: list[int], dtype: torch.dtype) -> Tensor:
    count = dtype.itemsize * torch.Size(shape).numel()
    numbers = torch.arange(count, dtype=torch.uint8) % 2  # truth values are 0 or 1
    return numbers.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


@settings(deadline=None, max_examples=examples(200))
@given(FILES, st.sampled_from([{}, {"kept": 'an "é"'}]), st.sampled_from([1, 40, 1 << 20]))
def test_any_file_is_that_of_safetensors(
    file: dict[str, tuple[list[int], torch.dtype]], metadata: dict[str, str], read: int
) -> None:
    tensors = {name: filled(shape, dtype) for name, (shape, dtype) in file.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_stream, "READ", read)
        found = b"".join(streamed(tensors, metadata))
    assert found == save(tensors, metadata=metadata or None)


def test_tensors_that_share_memory_or_are_views_are_written_each_by_itself() -> None:
    whole = torch.arange(12.0).view(3, 4).requires_grad_()
    tensors = {"whole": whole, "again": whole, "turned": whole.t(), "row": whole[1]}
    copies = {name: one.detach().contiguous().clone() for name, one in tensors.items()}
    assert b"".join(streamed(tensors, {})) == save(copies)
