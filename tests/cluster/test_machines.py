"""Workers on several machines: network namespaces, which see each other only over their own addresses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.machines import Machines
from tests.cluster.torchrun_program import PROGRAM
from tests.launch.runs import frame

pytestmark = pytest.mark.cluster
LISTENS = """
import os, pathlib, socket
inodes = set()
for fd in pathlib.Path("/proc/self/fd").iterdir():
    inodes.add(fd.stat().st_ino if fd.exists() else 0)
for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
    _, local, _, state, *_, inode = line.split()[:10]
    if state == "0A" and int(inode) in inodes:
        print("listens", place.workers.rank, socket.inet_ntoa(bytes.fromhex(local[:8])[::-1]))
"""


def test_workers_on_two_machines_train_together(tmp_path: Path, machines: Machines) -> None:
    frame(1000).to_parquet(tmp_path / "train.parquet")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("schema =", f"{LISTENS}\nschema =", 1), encoding="utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes", "2"]
    run += ["--master-addr", machines.master, "--master-port", "29400", "--node-rank"]
    arguments = [str(program), str(tmp_path / "train.parquet"), str(tmp_path / "model")]
    with machines:
        ranks = [
            subprocess.Popen(
                [*machines.command(rank), *run, str(rank), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=170) for rank in ranks]
    shown = "\n".join(f"rank {i}:\n{out}\n{err}" for i, (out, err) in enumerate(said))
    assert [rank.returncode for rank in ranks] == [0, 0], shown
    told = json.loads(said[0][0].strip().splitlines()[-1])
    assert (told["samples"], told["workers"]) == (3000, 2)
    assert told["auc"] > 0.6
    listened = {line for out, _ in said for line in out.splitlines() if line.startswith("listens")}
    assert sorted(listened) == ["listens 0 10.213.0.1", "listens 1 10.213.0.2"]
