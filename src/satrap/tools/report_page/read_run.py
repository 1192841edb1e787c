"""The data of a report: files of the run folder, and scores of the run's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.series import MODEL_FOLDER, find
from satrap.config.source import read
from satrap.dense import DENSE_TABLE
from satrap.errors import CheckpointError, ConfigError, DataError, StoreError
from satrap.launch.datasets import open_part
from satrap.launch.folder.run_folder import RunFolder, no_run
from satrap.launch.scoring import load_predictor
from satrap.settings.training import RESERVED
from satrap.tools.report_page import RunReport, Scores, TableSize
from satrap.tools.report_page.run import flat
from satrap.tools.report_page.scores import scores
from satrap.tools.report_page.series import curves, read_lines

Told = Callable[[str], object]


def report(path: str, *, score: bool = True, notice: Told = lambda _: None) -> RunReport:
    """Return the data of a report; the report names missing parts and the reasons.

    Args:
        path: the run folder, also of a running, stopped or killed run.
        score: score the validation rows, else the test rows, with the trained model. Default: True.
        notice: called with a line of text before slow work.

    Raises:
        ConfigError: the folder is not a run folder.
    """
    folder = RunFolder(Path(path))
    if not folder.recipe_file.exists():
        raise no_run(path)
    missing: list[str] = []
    history = read_lines(folder.history_file)
    series = curves(history)
    if "loss" not in series:
        missing.append("Figures of steps are missing: metrics.jsonl has none; it gets a line every 50 steps.")
    if not score:
        missing.append("No rows were scored (--quick), so ROC, calibration and gain by feature are left out.")
    return RunReport(
        name=path,
        recipe=flat(read(folder.recipe_file, ()).values),
        recipe_text=folder.recipe_file.read_text(encoding="utf-8"),
        sessions=read_lines(folder.sessions_file),
        metrics=_metrics(folder, missing.append) or _so_far(history),
        curves=series,
        tables=_tables(folder, missing.append),
        scores=_scores(folder, missing.append, notice) if score else None,
        missing=missing,
    )


def _metrics(folder: RunFolder, missing: Told) -> dict[str, Any]:
    if not (metrics := folder.metrics):
        missing(
            "Final metrics are missing: the run has not ended, or was killed; the newest metrics are shown."
        )
    return metrics


def _so_far(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `metrics.json` for a run that has not ended, from its newest lines."""
    lines = {str(line.get("event")): line for line in history}
    step, validation = lines.get("step", {}), lines.get("validation", {})
    metrics = {
        key: step[key] for key in ("samples", "samples_per_second", "refused") if step.get(key) is not None
    }
    if "stage_seconds" in step:
        metrics["traffic"] = {"stage_seconds": step["stage_seconds"]}
    if validation:
        metrics["validation"] = {k: v for k, v in validation.items() if k not in RESERVED}
    return metrics


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
        missing("Sizes of tables are unknown: the run has no full snapshot.")
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
    """Return the results of scoring, or None if scoring is impossible."""
    try:
        recipe = folder.recipe()
        with closing(load_predictor(folder, recipe)) as predictor:
            for part in ("validation", "test"):
                data = open_part(recipe, predictor.schema, part)
                if data is not None:
                    notice(f"{folder}: scoring the {part} rows")
                    scored = scores(predictor, data, part)
                    if not scored.labels:
                        missing("ROC and calibration are left out: no label is binary.")
                    return scored
        missing("The recipe has no validation or test rows, so no rows were scored.")
    except (CheckpointError, ConfigError, DataError, StoreError) as error:
        missing(f"ROC, calibration and gain by feature are left out: {error.what}.")
    return None
