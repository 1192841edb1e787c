"""Ranks that hold the rows together, without a launcher: one is killed, the others must say so and end.

`python -m tools_dev.chaos.rank_kills --runs 30 --seed 1` starts three processes, kills one at a random time,
and checks that each survivor ends within the deadline with an error that names its rank. Then the run goes on
from its newest snapshot, and must end with the bytes of an undisturbed one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from tests.launch.runs import frame
from torch.distributed import TCPStore

from tools_dev.chaos.digests import differences, digest
from tools_dev.chaos.rank import LOST

RANKS, DEADLINE = 3, 10.0
LEFT_SECONDS = 5.0
"""What a survivor may take beside the deadline, to end."""


class Run:
    """Processes of one run.

    Args:
        rows: file of the training rows.
        folder: of snapshots and model.
        resume: continue from the newest snapshot.
    """

    def __init__(self, rows: Path, folder: Path, *, resume: bool) -> None:
        self._store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
        arguments = [str(rows), str(folder), "yes" if resume else "no", str(DEADLINE)]
        self.ranks = []
        for rank in range(RANKS):
            variables = {
                "WORLD_SIZE": str(RANKS),
                "RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
            }
            command = [sys.executable, "-m", "tools_dev.chaos.rank", *arguments]
            self.ranks.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
            )

    def wait_for_a_step(self, step: int) -> bool:
        """Return once rank 0 has taken a step; False if the run has ended before."""
        assert self.ranks[0].stdout is not None
        return any(line.strip() == str(step) for line in self.ranks[0].stdout)

    def end(self) -> list[tuple[int, str]]:
        """Return exit code and output of each rank; raise `TimeoutExpired` if one does not end."""
        try:
            limit = time.monotonic() + DEADLINE + LEFT_SECONDS
            return [
                (rank.wait(max(limit - time.monotonic(), 0.1)), rank.stdout.read() if rank.stdout else "")
                for rank in self.ranks
            ]
        finally:
            for rank in self.ranks:
                rank.kill()
                rank.communicate()  # closes the pipe and reaps the process


def finish(run: Run) -> None:
    """Wait until a run has got to its end."""
    while run.wait_for_a_step(-1):
        pass
    for code, said in run.end():
        assert code == 0, said


def one(source: random.Random, rows: Path, folder: Path, steps: int) -> bool:
    """Kill a rank of a run, check the others, and let the run end; return whether one could be killed."""
    run, victim, step = Run(rows, folder, resume=False), source.randrange(RANKS), source.randint(1, steps)
    alive = run.wait_for_a_step(step)
    time.sleep(source.uniform(0.0, 0.02))
    run.ranks[victim].kill()
    begun, ended = time.monotonic(), run.end()
    killed = alive and ended[victim][0] == -9
    for rank, (code, said) in enumerate(ended):
        if killed and rank != victim and code != 0:
            assert code == LOST, f"rank {rank} ended with {code}: {said}"
            error = said[said.index("lost: ") :]
            assert f"rank {victim}" in error or f"worker {victim}" in error, error
            assert "stage: " in error or "all-to-all" in error, error
            print(f"step {step}: rank {victim} killed; rank {rank}: {error.splitlines()[0]}", flush=True)
    assert time.monotonic() - begun < DEADLINE + LEFT_SECONDS
    saved = any((folder / "checkpoints").glob("step-*/manifest.json"))
    if not saved:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    finish(Run(rows, folder, resume=saved))
    return killed


def loop(runs: int, *, seed: int) -> int:
    """Kill a rank of so many runs; return how many could be killed before they ended."""
    source, killed = random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="satrap-ranks-") as place:
        rows, whole = Path(place) / "rows.parquet", Path(place) / "whole"
        frame(601).to_parquet(rows)
        whole.mkdir()
        finish(Run(rows, whole, resume=False))
        expected = digest(str(whole / "model"))
        for number in range(runs):
            folder = Path(place) / str(number)
            folder.mkdir()
            killed += one(source, rows, folder, steps=115)
            wrong = differences(digest(str(folder / "model")), expected)
            assert not wrong, f"run {number} differs from an undisturbed one: {wrong}"
            shutil.rmtree(folder)
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill ranks that hold the rows together.")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    killed = loop(given.runs, seed=given.seed)
    print(f"{given.runs} runs, {killed} with a killed rank: all ended with the bytes of an undisturbed run")


if __name__ == "__main__":
    main()
