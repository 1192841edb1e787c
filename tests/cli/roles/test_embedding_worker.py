"""`satrap embedding-worker`: started by hand, it pools for whoever asks."""

from __future__ import annotations

import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from satrap.runtime.numba_cache import COMPILING
from tests.cli.command import SATRAP, satrap
from tests.embedding.workers import tier


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", "127.0.0.1", "--listen", "127.0.0.1:0"], "127.0.0.1"),
        (["--shards", "127.0.0.1:1", "--listen", "0.0.0.0:0"], "needs a key"),
    ],
)
def test_bad_input_is_one_error(arguments: list[str], message: str) -> None:
    satrap("embedding-worker", *arguments).assert_refused(message)


@pytest.mark.cluster
def test_it_pools_until_it_is_asked_to_stop() -> None:
    data = tier.Listed(tier.batches(5))
    with tier.servers(2, 0) as (shards, _), tier.servers(2, 0) as (others, _):
        process = subprocess.Popen(
            [SATRAP, "embedding-worker", "--shards", ",".join(shards), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("satrap embedding-worker ready on 127.0.0.1:")
        middle: Any = SimpleNamespace(address=line.split()[4])
        through, alone = tier.trainer(shards, [middle]), tier.trainer(others)
        for one in (through, alone):
            one.fit(data)
        assert tier.difference(through, alone) < 1e-6
        for one in (through, alone):
            one.close()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=250)
    err = err.removeprefix(f"{COMPILING}\n")  # the first process of this machine
    assert (process.returncode, out, err) == (0, "", "")
