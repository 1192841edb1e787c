"""Real processes joined over gloo, each with rows on a device, are processes with rows in RAM, to the bit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.triton, pytest.mark.timeout(900)]
PROGRAM = """
import hashlib, sys
from dataclasses import replace
import numpy as np
import torch.distributed as dist
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.collective.torch_ranks import TorchRanks
from tests.contract.parties import TABLES
from tests.exchange.collective.parties import EXACT
from tests.exchange.collective.work import STORE, batches, run
rank, port, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
store = replace(STORE, memory=1 << 20, device=device)
exchange = CollectiveExchange(TorchRanks(deadline=600.0), TABLES, store=store, wire=EXACT)
digest = hashlib.sha256()
for rows in run(exchange, batches(rank), 1):
    digest.update(np.asarray(rows).tobytes())
for table, chunk in exchange.rows.cut(still=True):
    digest.update(table.encode() + chunk.ids.tobytes() + chunk.weights.tobytes() + chunk.state.tobytes())
print(digest.hexdigest(), flush=True)
exchange.close()
dist.destroy_process_group()
"""


def digests(device: str) -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = os.pathsep.join(path for path in sys.path if path)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(port), device],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for rank in range(2)
    ]
    found = []
    for process in started:
        out, err = process.communicate(timeout=800)
        assert process.returncode == 0, err[-3000:]
        found.append(out)
    return found


def test_two_processes_with_rows_on_devices_are_two_processes_with_rows_in_ram() -> None:
    assert digests("cuda") == digests("cpu")
