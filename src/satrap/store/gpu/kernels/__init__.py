"""Triton kernels."""

from __future__ import annotations

import threading
from typing import Any

from satrap.store.gpu.device import interpreted

if interpreted():
    # The interpreter patches Triton's own modules while it runs a kernel: one thread at a time may run one.
    from triton.runtime import interpreter

    _lock, _run = threading.RLock(), interpreter.GridExecutor.__call__

    def _locked(*arguments: Any, **named: Any) -> Any:
        with _lock:
            return _run(*arguments, **named)

    interpreter.GridExecutor.__call__ = _locked
