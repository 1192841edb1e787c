"""Handling of Ctrl-C at any time during a command."""

from __future__ import annotations

import os

INTERRUPTED = "interrupted; nothing was saved"


def end(*_: object) -> None:
    """End this process at once. SIGINT handler during imports, where a library may swallow an exception."""
    os.write(2, f"error: {INTERRUPTED}\n".encode())
    os._exit(1)
