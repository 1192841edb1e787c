"""`satrap loader`: started by hand, it reads for whoever asks."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from satrap.config import load
from satrap.data.remote.client import RemoteData
from satrap.launch.datasets import measured, open_part
from tests.cli.command import SATRAP, satrap
from tests.launch.runs import make_recipe
from tests.support.batches import assert_same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml", "--listen", "127.0.0.1:0"], "missing.yaml"),
        (["{recipe}", "--listen", "0.0.0.0:0"], "needs a key"),
    ],
)
def test_bad_input_is_one_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    recipe = make_recipe(tmp_path)
    satrap("loader", *(a.format(recipe=recipe) for a in arguments)).assert_refused(message)


@pytest.mark.cluster
def test_it_reads_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    process = subprocess.Popen(
        [SATRAP, "loader", path, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("satrap loader ready on 127.0.0.1:")
    recipe = load(path)
    schema = measured(recipe, recipe.schema())
    for part in ("train", "test"):
        here = open_part(recipe, schema, part, worker=1, workers=2)
        assert here is not None
        there = RemoteData("loader", line.split()[4], part, schema, worker=1, workers=2)
        for a, b in zip(there.batches(1), here.batches(1), strict=True):
            assert_same(a, b)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=250)
    assert (process.returncode, out, err) == (0, "", "")
