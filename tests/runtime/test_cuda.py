"""The facts of a CUDA device."""

from __future__ import annotations

import pytest
import torch

from satrap.runtime.cuda import CudaDevice, cuda_device


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_device() -> None:
    assert cuda_device() is None


def test_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5, 8))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert cuda_device() == CudaDevice("Some GPU", 8, 5, False)
    assert cuda_device(1) is None
