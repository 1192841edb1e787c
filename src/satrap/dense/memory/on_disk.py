"""Tensors in memory-mapped files without a name."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import Tensor

from satrap.errors import ConfigError


def on_disk(tensor: Tensor, folder: str) -> Tensor:
    """Return a contiguous copy of a tensor, on the CPU, in a file of its own.

    The system reads the file as its elements are used, and writes it back when it needs the memory. The file
    disappears with the tensor, or when the process ends, however it ends.

    Args:
        tensor: not empty.
        folder: a folder on a disk; in a memory file system, such as `/dev/shm`, nothing is saved.

    Raises:
        ConfigError: the folder is not writable, or full.
    """
    count = tensor.numel() * tensor.element_size()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="satrap-") as file:
            os.posix_fallocate(file.fileno(), 0, count)  # running out of space later would kill the process
            mapped = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    except OSError as error:
        raise ConfigError(
            f"cannot offload to this disk: {error.strerror}",
            where=f"dense.offload, {folder}",
            why=f"a tensor of {count:,} bytes needs a file there",
            fix="choose a writable folder on a disk with more space",
        ) from error
    return mapped.view(tensor.shape).copy_(tensor.detach())


def is_on_disk(tensor: Tensor) -> bool:
    """Return whether a tensor is in a file."""
    return tensor.untyped_storage().filename is not None


def copied(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor: in a file if the tensor is in one, else in host memory.

    Raises:
        ConfigError: the disk of the file is full.
    """
    file = tensor.untyped_storage().filename
    return tensor.detach().to("cpu", copy=True) if file is None else on_disk(tensor, os.path.dirname(file))
