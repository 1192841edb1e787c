"""What a report says of a run: read from its folder, and scored with its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.series import MODEL_FOLDER, find
from satrap.checkpoint.storage import Storage
from satrap.config.source import read
from satrap.dense import DENSE_TABLE
from satrap.errors import CheckpointError, ConfigError, DataError, StoreError
from satrap.launch.datasets import open_part
from satrap.launch.folder import RunFolder
from satrap.launch.scores import scores
from satrap.launch.scoring import load_predictor
from satrap.metrics.own import RESERVED
from satrap.report.page import RunReport, Scores, TableSize
from satrap.report.page.run import flat
from satrap.report.page.series import curves, read_lines

Told = Callable[[str], object]


def report(path: str, *, score: bool = True, notice: Told = lambda _: None) -> RunReport:
    """Return what is known of a run; what cannot be had is left out, and the report says why.

    Args:
        path: the run folder, also of a run that goes on, was stopped or was killed.
        score: score the validation rows, else the test rows, with the trained model. Default: yes.
        notice: called with a line of text before something that takes time.

    Raises:
        ConfigError: the folder holds no run.
    """
    folder = RunFolder(Path(path))
    if not folder.recipe_file.exists():
        raise ConfigError(
            f"not a run folder: it has no {folder.recipe_file.name}",
            where=path,
            fix="give the folder that satrap train printed at its end",
        )
    missing: list[str] = []
    history = read_lines(folder.history_file)
    found = curves(history)
    if "loss" not in found:
        missing.append("Figures of steps: metrics.jsonl has none; it gets a line every 50 steps.")
    if not score:
        missing.append("No rows were scored (--quick), so ROC, calibration and gain by feature are left out.")
    return RunReport(
        name=path,
        recipe=flat(read(folder.recipe_file, ()).values),
        recipe_text=folder.recipe_file.read_text(encoding="utf-8"),
        sessions=read_lines(folder.sessions_file),
        metrics=_metrics(folder, missing.append) or _so_far(history),
        curves=found,
        tables=_tables(folder, missing.append),
        scores=_scores(folder, missing.append, notice) if score else None,
        missing=missing,
    )


def _metrics(folder: RunFolder, missing: Told) -> dict[str, Any]:
    try:
        found = json.loads(folder.metrics_file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        missing(
            "There are no final metrics: the run has not ended, or was killed; the newest ones are shown."
        )
        return {}


def _so_far(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `metrics.json` would say of a run that has not ended, by its newest lines."""
    lines = {str(line.get("event")): line for line in history}
    step, validation = lines.get("step", {}), lines.get("validation", {})
    found = {
        key: step[key] for key in ("samples", "samples_per_second", "refused") if step.get(key) is not None
    }
    if "stage_seconds" in step:
        found["traffic"] = {"stage_seconds": step["stage_seconds"]}
    if validation:
        found["validation"] = {k: v for k, v in validation.items() if k not in RESERVED}
    return found


def _tables(folder: RunFolder, missing: Told) -> dict[str, TableSize]:
    """Return the sizes of the tables in the model, else in the newest full snapshot."""
    try:
        places = find(_place(folder))
        manifests = {name: read_manifest(Storage(url)) for name, url in places.items()}
    except (CheckpointError, ConfigError) as error:
        missing(f"Sizes of tables are unknown: {error.what}.")
        return {}
    whole = [manifest for manifest in manifests.values() if manifest.delta is None]
    chosen = manifests.get(MODEL_FOLDER) or (whole[-1] if whole else None)
    if chosen is None:
        missing("Sizes of tables are unknown: there is no full snapshot.")
        return {}
    return _sizes(chosen)


def _place(folder: RunFolder) -> str:
    if folder.model.exists() or folder.checkpoints.exists():
        return str(folder)
    return folder.snapshots(folder.recipe())


def _sizes(manifest: Manifest) -> dict[str, TableSize]:
    rows, sizes = manifest.rows(), dict.fromkeys(manifest.rows(), 0)
    for entry in manifest.files.values():
        if entry.table:
            sizes[entry.table] += entry.bytes
    return {name: TableSize(rows[name], sizes[name]) for name in rows if name != DENSE_TABLE}


def _scores(folder: RunFolder, missing: Told, notice: Told) -> Scores | None:
    """Return what a scoring pass finds, or None if it is impossible."""
    try:
        recipe = folder.recipe()
        with closing(load_predictor(folder, recipe)) as predictor:
            for part in ("validation", "test"):
                data = open_part(recipe, predictor.schema, part)
                if data is not None:
                    notice(f"{folder}: scoring the {part} rows")
                    found = scores(predictor, data, part)
                    if not found.labels:
                        missing("ROC and calibration are left out: no label is binary.")
                    return found
        missing("The recipe names no validation or test rows, so nothing was scored.")
    except (CheckpointError, ConfigError, DataError, StoreError) as error:
        missing(f"ROC, calibration and gain by feature are left out: {error.what}.")
    return None
