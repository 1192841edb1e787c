"""Whether a run that goes on reads the rows that it has read before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from satrap.checkpoint.manifest import reading_settings
from satrap.data.fingerprint import Fingerprint, difference, unsure
from satrap.errors import DataError
from satrap.train.position import amid_pass

DATA = "data"
"""Key of the fingerprints of the training rows in the settings of a snapshot."""

Plain = Sequence[Mapping[str, Any]]


def fingerprint(data: object) -> Plain | None:
    """Return what tells whether data is still the same; None if it cannot say."""
    found = getattr(data, "fingerprint", None)
    return found() if callable(found) else None


def check_same(
    settings: Mapping[str, Any], now: Plain | None, where: str, warn: Callable[[str], None]
) -> None:
    """Compare the training rows with those of a snapshot, of which `where` is the place.

    Raises:
        DataError: they have changed, and the snapshot was taken amid a pass.
        CheckpointError: the settings of the snapshot are impossible.
    """
    with reading_settings(where):
        plain = settings.get(DATA)
        if plain is None or now is None:
            return
        then, files = [Fingerprint(**one) for one in plain], [Fingerprint(**one) for one in now]
        amid = amid_pass([settings["run"], *settings["peers"]])
        found, doubts = difference(then, files), unsure(then, files)
    if found is None:
        if doubts:
            warn(_doubtful(doubts))
    elif amid:
        raise DataError(
            f"the training data has changed since the snapshot: {found[1]}",
            where=found[0],
            why="the snapshot is of the middle of a pass, so rows would be left out or trained twice",
            fix="bring the data back as it was, and resume; or start a new run with the new data",
        )
    else:
        warn(
            f"warning: the training data has changed since the snapshot: {found[1]}\n"
            f"  where: {found[0]}\n"
            "  why it matters: the next pass reads it as it is now; those before read other rows\n"
            "  what to do: nothing, if that is meant; otherwise bring the data back as it was"
        )


def _doubtful(names: Sequence[str]) -> str:
    others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return (
        "warning: training files have another time of change than at the snapshot, but the same size\n"
        f"  where: {names[0]}{others}\n"
        "  why it matters: not the whole content of large or remote files is compared; the run goes on\n"
        "  what to do: nothing, if they are copies; otherwise bring them back as they were"
    )
