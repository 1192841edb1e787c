"""One program, alone and with `torchrun`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.runs import frame

pytestmark = pytest.mark.cluster
PROGRAM = """
import json, sys
import satrap
import torch

place = satrap.train.Place.from_environment(threads=1)
schema = satrap.Schema(["clicked"], {"user": satrap.Categorical(dim=4), "item": satrap.Categorical(dim=4)})
torch.manual_seed(1)
trainer = satrap.Trainer(
    satrap.models.DNN(schema, hidden=[8]),
    schema,
    embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
    dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    mode="sync",
    place=place,
)
data = satrap.data.read(sys.argv[1], schema, batch_size=50).with_options(**place.share)
result = trainer.fit(data, epochs=3)
metrics = trainer.evaluate(data)
trainer.save(sys.argv[2])
if place.workers.rank == 0:
    print(json.dumps({"samples": result.samples, "auc": metrics["auc"], "workers": place.workers.size}))
trainer.close()
place.workers.close()
"""


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
