"""Saves the trained model of a run in its folder or, if the folder is not writable, elsewhere."""

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from satrap.errors import CheckpointError
from satrap.launch.folder.run_folder import RunFolder
from satrap.train import Trainer


def save_model(trainer: Trainer, folder: RunFolder) -> None:
    """Save the model of a run, or save it in the system's temporary folder if the run folder is not writable.

    The second case raises a CheckpointError with the place of the model and how to restore it.
    """
    place, error = trainer.state.save(_places(folder))
    if error is None:
        return
    if not place:
        raise _lost(trainer, folder, error) from error
    target = shlex.quote(str(folder.model))
    raise CheckpointError(
        "the trained model could not be saved in the run folder",
        where=str(folder.model),
        why=f"the model was saved in another place: {place}",
        fix=f"free space, then: mkdir -p {target} && cp -r {shlex.quote(place)}/. {target}",
    ) from error


def _places(folder: RunFolder) -> Iterator[str]:
    yield str(folder.model)
    with suppress(OSError):  # without a temporary folder there is no other place
        spare = Path(tempfile.mkdtemp(prefix="satrap-"))
        yield str(spare / "model")
        shutil.rmtree(spare, ignore_errors=True)  # reached only if this folder is not writable either


def _lost(trainer: Trainer, folder: RunFolder, error: CheckpointError) -> CheckpointError:
    """Return the error for a model that could not be saved anywhere."""
    series, step = trainer.state.series, None
    if series is not None:
        with suppress(CheckpointError):
            step = series.latest()
    return CheckpointError(
        f"the trained model could not be saved: {error.what}",
        where=f"{folder.model}, and the temporary folder",
        why="training has ended, and its result is not saved"
        + ("" if step is None else f" after the snapshot of step {step:,}"),
        fix="free space, then "
        + (
            "train again"
            if step is None
            else f"continue from the snapshot: satrap train --resume --output {folder}"
        ),
    )
