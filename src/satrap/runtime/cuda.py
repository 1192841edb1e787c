"""The CUDA device of this machine, as far as recipes depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A CUDA device.

    Args:
        name: of the product.
        total, free: bytes of its memory, and the free part of it.
        bfloat16: whether it computes with bfloat16.
    """

    name: str
    total: int
    free: int
    bfloat16: bool


def cuda_device(number: int = 0) -> CudaDevice | None:
    """Return a CUDA device that PyTorch sees, None if there is none of this number."""
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return None
    free, total = torch.cuda.mem_get_info(number)
    name, (major, _) = torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number)
    return CudaDevice(name, total, free, major >= 8)
