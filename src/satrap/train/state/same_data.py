"""Checks that a resumed run reads the same rows as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from satrap.checkpoint.manifest import reading_settings
from satrap.data.fingerprint import Fingerprint, difference, unsure
from satrap.errors import DataError
from satrap.train.state.run_cursor import amid_pass

DATA = "data"
"""Key of the fingerprints of the training rows in the settings of a snapshot."""

Plain = Sequence[Mapping[str, Any]]


def fingerprint(data: object) -> Plain | None:
    """Return the fingerprints of data; None if it has none."""
    method = getattr(data, "fingerprint", None)
    return method() if callable(method) else None


def check_same(
    settings: Mapping[str, Any], now: Plain | None, where: str, warn: Callable[[str], None]
) -> None:
    """Compare the training rows with the rows of a snapshot at `where`.

    Raises:
        DataError: they have changed, and the snapshot was taken within an epoch.
        CheckpointError: the settings of the snapshot are invalid.
    """
    with reading_settings(where):
        plain = settings.get(DATA)
        if plain is None or now is None:
            return
        then, files = [Fingerprint(**values) for values in plain], [Fingerprint(**values) for values in now]
        amid = amid_pass([settings["run"], *settings["peers"]])
        change, doubts = difference(then, files), unsure(then, files)
    if change is None:
        if doubts:
            warn(_doubtful(doubts))
    elif amid:
        raise DataError(
            f"the training data has changed since the snapshot: {change[1]}",
            where=change[0],
            why="the snapshot was taken within an epoch, so rows would be left out or trained twice",
            fix="restore the old data and resume, or start a new run with the new data",
        )
    else:
        warn(
            f"warning: the training data has changed since the snapshot: {change[1]}\n"
            f"  where: {change[0]}\n"
            "  why it matters: the next epoch reads the changed data; earlier epochs read other rows\n"
            "  what to do: nothing, if the change is intended; otherwise restore the old data"
        )


def _doubtful(names: Sequence[str]) -> str:
    others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return (
        "warning: training files have another modification time than at the snapshot, but the same size\n"
        f"  where: {names[0]}{others}\n"
        "  why it matters: the content of large or remote files is only compared in part; the run continues\n"
        "  what to do: nothing, if the files are copies; otherwise restore the old files"
    )
