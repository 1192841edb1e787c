"""The device of rows, and its memory; here without a GPU."""

from __future__ import annotations

import pytest
import torch

from satrap.errors import ConfigError, StoreError
from satrap.runtime.environment import variables
from satrap.store.gpu import device
from satrap.store.gpu.device import on_its_device

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there"),
]


def test_the_interpreter_stands_in_for_a_gpu() -> None:
    assert device.rows_device("cuda") == torch.device("cpu")
    assert device.row_memory("cuda", 1 << 20) == 1 << 20
    assert device.row_memory("cuda", None) == 256 << 20


@pytest.mark.parametrize(
    ("name", "what"),
    [("cuda:1", "there is no device cuda:1: PyTorch sees 0"), ("gpu", "device 'gpu' is unknown")],
)
def test_a_device_that_is_not_there(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(variables(), "TRITON_INTERPRET")
    with pytest.raises(ConfigError, match=what):
        device.row_memory(name, None)


def test_too_little_memory_is_refused_with_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(variables(), "TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6 << 30, 8 << 30))
    assert device.row_memory("cuda:0", None) == 3 << 30
    with pytest.raises(ConfigError, match=r"is 7.0 GiB, but cuda:0 has 6.0 GiB of 8.0 GiB free"):
        device.row_memory("cuda:0", 7 << 30)


def test_a_request_without_memory_is_a_store_error() -> None:
    class Full:
        device = torch.device("cpu")

        @on_its_device
        def ask(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    with pytest.raises(
        StoreError, match="cpu has no memory left for a request: CUDA out of memory"
    ) as raised:
        Full().ask()
    assert raised.value.fix.startswith("reduce embedding.memory")
