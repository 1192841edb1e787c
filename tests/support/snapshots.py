"""Writes the rows of an exchange as a snapshot, and reads the model that a run saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.ipc

from satrap.checkpoint import Background, Checkpoint, read_checkpoint, write_checkpoint
from satrap.exchange import Exchange


@contextmanager
def written_at_once() -> Iterator[None]:
    """Write each snapshot and version before the next step: none is left out since one is being written."""
    with mock.patch.object(Background, "start", lambda self, job: self._run(job)):
        yield


def write(exchange: Exchange, place: Path) -> str:
    cut = exchange.rows.cut()
    write_checkpoint(str(place), Checkpoint({}, {}, {}, (), rows=cut.write))
    return str(place)


def saved(folder: Path) -> dict[str, Any]:
    """Every weight and row of a run."""
    (data,) = (folder / "model").glob("data-*")
    network = read_checkpoint(str(folder / "model")).model
    content: dict[str, Any] = {name: tensor.numpy().tobytes() for name, tensor in sorted(network.items())}
    for name in sorted({path.name.split(".")[0] for path in data.glob("table-*.arrow")}):
        parts = [pyarrow.ipc.open_stream(path).read_all() for path in data.glob(f"{name}.*arrow")]
        content[name] = pyarrow.concat_tables(parts).sort_by("ids").to_pydict()  # shards write their own
    return content
