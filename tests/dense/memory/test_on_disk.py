"""Tensors in files without a name; `test_offload.py` and `test_weights.py` have their errors."""

from __future__ import annotations

from pathlib import Path

import torch

from satrap.dense.memory.on_disk import copied, is_on_disk, on_disk


def test_a_tensor_is_copied_to_where_it_was(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    there = on_disk(whole.T, str(tmp_path))
    assert is_on_disk(there)
    assert not is_on_disk(whole)
    assert there.is_contiguous()
    for tensor in (there, there[1:], whole):
        copy = copied(tensor)
        assert torch.equal(copy, tensor)
        assert is_on_disk(copy) == is_on_disk(tensor)
        tensor += 1
        assert not torch.equal(copy, tensor)
    assert list(tmp_path.iterdir()) == []
