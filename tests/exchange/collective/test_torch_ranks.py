"""Real processes joined by `torch.distributed`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, sys, time
import numpy as np
import torch.distributed as dist
from satrap.errors import ExchangeError
from satrap.exchange.collective.torch_ranks import TorchRanks
rank, world, port, dies = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
ranks = TorchRanks(deadline=20.0)
def sizes(turn, a, b):
    return 0 if (turn + a + b) % 3 == 0 else 1000 * a + 10 * b + turn
for turn in range(20):
    given = [np.full(sizes(turn, rank, to), 16 * rank + to, np.uint8) for to in range(world)]
    lengths = [len(part) for part in given]
    found = ranks.all_to_all(
        np.concatenate(given), lengths, [sizes(turn, other, rank) for other in range(world)]
    )
    for other, part in enumerate(found):
        assert len(part) == sizes(turn, other, rank), (turn, other)
        assert (part == 16 * other + rank).all()
print("exchanged", flush=True)
if dies:
    try:
        while True:
            ranks.all_to_all(np.zeros(9 * world, np.uint8), [9] * world, [9] * world)
    except ExchangeError as error:
        print(f"lost: {error.what}", flush=True)
        os._exit(7)
ranks.close()
dist.destroy_process_group()
"""


def started(world: int, *, dies: bool) -> list[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, (rank, world, port, int(dies)))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


@pytest.mark.cluster
def test_bytes_of_every_size_reach_every_rank() -> None:
    for process in started(3, dies=False):
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "exchanged\n"), err


@pytest.mark.cluster
def test_a_killed_rank_is_noticed_by_all_others() -> None:
    processes = started(3, dies=True)
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "exchanged\n"
    time.sleep(0.2)
    processes[1].send_signal(signal.SIGKILL)
    for rank, process in enumerate(processes):
        out, _ = process.communicate(timeout=60)
        if rank != 1:
            assert process.returncode == 7
            assert out.startswith(f"lost: rank {rank} lost another rank"), out
