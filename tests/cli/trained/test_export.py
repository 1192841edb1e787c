from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from satrap.launch.folder.run_folder import RunFolder
from tests.cli.command import satrap
from tests.export.runs import frame, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("export") / "run", "two_tower")


def test_a_network_is_written(run: RunFolder, tmp_path: Path) -> None:
    output = tmp_path / "network.pt2"
    answer = satrap("export", "network", run.path, output)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"network   {output}, step 6",
        "inputs    vectors [batch, 24], numeric [batch, 4]",
        "outputs   clicked_probability",
    ]
    assert json.loads((tmp_path / "network.json").read_text())["step"] == 6
    scores = torch.export.load(output).module()(vectors=torch.zeros(2, 24), numeric=torch.zeros(2, 4))
    assert scores.shape == (2, 1)
    satrap("export", "network", run.path, output).assert_refused("already exists", str(output))


def test_vectors_are_written(run: RunFolder, tmp_path: Path) -> None:
    source, output = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    frame(12).to_parquet(source)
    answer = satrap("export", "items", run.path, output, "--input", source)
    assert (answer.code, answer.out) == (0, f"12 vectors written to {output}\n")
    assert pq.read_table(output)["item"].to_pylist() == frame(12)["item"].tolist()
    users = tmp_path / "users.parquet"
    answer = satrap(
        "export", "items", run.path, users, "--input", source, "--tower", "user", "--id", "clicked"
    )
    assert answer.code == 0
    assert pq.read_table(users)["clicked"].to_pylist() == frame(12)["clicked"].tolist()
    assert pq.read_table(users)["vector"] != pq.read_table(output)["vector"]
    satrap("export", "items", run.path, tmp_path / "out.csv").assert_refused("format", ".parquet")
    satrap("export", "items", run.path, users.with_stem("x")).assert_refused("--input FILE")
