"""One program, alone and with `torchrun`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.torchrun_program import PROGRAM
from tests.launch.runs import frame

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_program_runs_alone_and_with_torchrun(tmp_path: Path, workers: int) -> None:
    frame(1000).to_parquet(tmp_path / "train.parquet")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable]
    if workers:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    arguments = [str(program), str(tmp_path / "train.parquet"), str(tmp_path / "model")]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert (told["samples"], told["workers"]) == (3000, max(workers, 1))
    assert told["auc"] > 0.6
    assert len(list((tmp_path / "model").glob("data-*/table-*"))) >= 2 * max(workers, 1)
