"""Starts a program in several processes that find each other, as the launcher does with workers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

Process = subprocess.Popen[str]


@contextmanager
def started(program: str, size: int, *arguments: str, stderr: int | None = None) -> Iterator[list[Process]]:
    """Run `python -m PROGRAM STORE RANK ARGUMENTS...` once for each rank; kill what is left at the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    port, c10d = listening.getsockname()[1], dist
    kept: Any = c10d.TCPStore(  # lives as long as the block
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    command = [sys.executable, "-m", program, f"127.0.0.1:{port}"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            bufsize=1,
        )
        for rank in range(size)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        del kept


def answers(program: str, size: int, *arguments: str) -> list[Any]:
    """Return what each process prints, as JSON."""
    with started(program, size, *arguments) as processes:
        return [json.loads(process.communicate(timeout=500)[0]) for process in processes]
