"""The device that holds the rows, and how much of its memory they get."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch

from satrap.errors import ConfigError, StoreError
from satrap.runtime.environment import variables
from satrap.runtime.formatting import size
from satrap.runtime.machine_limits import machine_bytes

F = TypeVar("F", bound=Callable[..., Any])
_INTERPRETED_BYTES = 256 << 20
"""Default memory of rows where Triton's interpreter stands in for a GPU."""


def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on the tensors of the CPU: for tests."""
    return variables().get("TRITON_INTERPRET") == "1"


def rows_device(name: str) -> torch.device:
    """Return the device of this name: cpu, cuda or cuda:N.

    Raises:
        ConfigError: the device is not there, or Triton is not installed.
    """
    if name == "cpu" or interpreted():
        return torch.device("cpu")
    where = f"embedding.device: {name}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device {name!r} is unknown", where=where, fix="use cpu, cuda or cuda:0"
        ) from error
    if device.type != "cuda":
        raise ConfigError(f"rows cannot be on device {name!r}", where=where, fix="use cpu, cuda or cuda:0")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(
            f"there is no device {name}: PyTorch sees {count} CUDA devices",
            where=where,
            fix="set embedding.device to cpu, or use a machine with a GPU and a CUDA build of PyTorch",
        )
    if find_spec("triton") is None:
        raise ConfigError(
            "rows on a GPU need Triton, which is not installed",
            where=where,
            fix="install a CUDA build of PyTorch, which brings it, or pip install triton",
        )
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def on_its_device(method: F) -> F:
    """Make a method run with `self.device` as the current device, where Triton launches kernels.

    If the device has no memory left, the method raises a `StoreError`.
    """

    @wraps(method)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                return method(self, *arguments, **named)
        except torch.OutOfMemoryError as error:
            raise StoreError(
                f"{self.device} has no memory left for a request: {str(error).splitlines()[0]}",
                why="the request was refused, and no row took a step",
                fix="reduce embedding.memory, which is reserved for rows, or data.batch_size",
            ) from error

    return cast("F", run)


def row_memory(name: str, memory: int | None) -> int:
    """Return the bytes of a device that rows may take: `memory`, by default half of its free memory.

    Raises:
        ConfigError: the device is not there, or has less free memory.
    """
    device = rows_device(name)
    if device.type == "cpu":  # of Triton's interpreter
        free = total = machine_bytes()
        memory = memory or _INTERPRETED_BYTES
    else:
        free, total = torch.cuda.mem_get_info(device)
    if memory is not None and memory > free:
        raise ConfigError(
            f"embedding.memory is {size(memory)}, but {name} has {size(free)} of {size(total)} free",
            why="rows on a GPU take all of their memory at the start",
            fix=f"set embedding.memory to less than {size(free)}, since the network needs some, or "
            "embedding.device to cpu",
        )
    return memory or free // 2
