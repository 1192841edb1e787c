"""Compares runs with the first one: their metrics, and whether a difference may be chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import CheckpointError, ConfigError, DataError, StoreError
from satrap.labels import Label
from satrap.launch.datasets import open_part
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.metrics.label import EPSILON
from satrap.runtime.formatting import counted, metric_name, quality
from satrap.tools.compare.seeds import mean_and_spread, runs_of
from satrap.tools.compare.significance import Difference, delong, paired_t
from satrap.tools.report_page import RunReport
from satrap.tools.report_page.read_run import report
from satrap.tools.report_page.run import plain

Floats = npt.NDArray[np.float64]
Notice = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A paired test of a run against the first one.

    Args:
        metric: display name of the metric.
        difference: the run minus the first one.
        by: the test and its pairs, in words.
    """

    metric: str
    difference: Difference
    by: str


@dataclass(slots=True)
class RunComparison:
    """The result of `compare`.

    Args:
        part: the rows of the metrics: "test" or "validation".
        metrics: run -> metric -> mean and sample standard deviation over its seeds.
        seeds: run -> its seeds.
        tests: run, without the first one -> tests against the first one.
        warnings: reasons not to compare runs.
        notes: tests that were left out, and why.
    """

    part: str
    metrics: dict[str, dict[str, tuple[float, float]]]
    seeds: dict[str, list[int]]
    tests: dict[str, list[PairedTest]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data, with None for numbers that are not finite."""
        values: dict[str, Any] = plain(asdict(self))
        return values


@dataclass(frozen=True, slots=True)
class _Scored:
    """Labels and predictions of all rows of a part, and whether rows have weights."""

    labels: npt.NDArray[np.float32]
    known: npt.NDArray[np.bool_]
    predictions: npt.NDArray[Any]
    weighted: bool
    kinds: tuple[Label, ...]


def compare(
    paths: Sequence[str], *, seeds: int | None = None, score: bool = True, notice: Notice = lambda _: None
) -> RunComparison:
    """Compare runs with the first one, on their test rows, or validation rows if a run has no test metrics.

    Over seeds that both runs have, metrics are compared with a paired t test. Over rows, the models of the
    first such seed score the same rows: AUCs are compared by DeLong's test, and losses of rows by a paired t
    test.

    Args:
        paths: folders of runs, or of runs with several seeds, see `runs_of`; at least two.
        seeds: number of seeds of each, from the lowest; default all.
        score: score the rows; default True.
        notice: called with a line of text before slow work.

    Raises:
        ConfigError: a folder holds no run or too few seeds, or a run has no metrics.
    """
    if len(set(paths)) < 2:
        raise ConfigError("give at least two runs to compare", fix="satrap compare runs/a runs/b")
    runs = {path: runs_of(path, seeds) for path in paths}
    every = [run for by_seed in runs.values() for run in by_seed.values()]
    part = _part(every)
    quality_of = {
        path: {seed: quality(run.metrics_of(part)) for seed, run in by_seed.items()}
        for path, by_seed in runs.items()
    }
    metrics = {path: mean_and_spread(list(by_seed.values())) for path, by_seed in quality_of.items()}
    result = RunComparison(part, metrics, {path: list(by_seed) for path, by_seed in runs.items()})
    first, *others = runs
    reports = {path: report(str(next(iter(runs[path].values()))), score=False) for path in runs}
    scored = dict[str, _Scored | None]()
    for path in others:
        shared = [seed for seed in runs[path] if seed in runs[first]]
        tests = result.tests[path] = list(_over_seeds(quality_of[first], quality_of[path], shared))
        if not _alike(result, reports[first], reports[path]) or not score:
            continue
        first_run, run = (
            runs[name][shared[0]] if shared else next(iter(runs[name].values())) for name in (first, path)
        )
        for scorer in (first_run, run):
            if str(scorer) not in scored:
                notice(f"{scorer}: scoring the {part} rows")
                scored[str(scorer)] = _scores(scorer, part, result.notes)
        tests += _over_rows(scored[str(first_run)], scored[str(run)], f"{run} and {first_run}", result.notes)
    return result


def _part(runs: Sequence[RunFolder]) -> str:
    """Return the part of the rows that all runs have metrics of."""
    part = "test" if all(run.metrics_of("test") for run in runs) else "validation"
    for run in runs:
        if not run.metrics_of(part):
            raise ConfigError(
                f"the run has no {part} metrics",
                where=str(run),
                fix="wait for its end, or continue it with satrap train --resume",
            )
    return part


def _alike(result: RunComparison, first: RunReport, other: RunReport) -> bool:
    """Return whether two runs were evaluated on the same rows and labels; warn if they were not."""
    if unlike := first.unlike(other, result.part):
        result.warnings.append(
            f"{other.name} and {first.name} were evaluated on different {unlike}, so their difference "
            "does not compare the models"
        )
    return not unlike


def _over_seeds(
    first: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]], shared: Sequence[int]
) -> Iterator[PairedTest]:
    """Yield a test for each metric, if two or more seeds are shared."""
    if len(shared) < 2:
        return
    for key in first[shared[0]]:
        if all(key in by_seed[seed] for by_seed in (first, other) for seed in shared):
            pairs = [[by_seed[seed][key] for seed in shared] for by_seed in (first, other)]
            yield PairedTest(metric_name(key), paired_t(*pairs), f"paired t, {len(shared)} seeds")


def _scores(run: RunFolder, part: str, notes: list[str]) -> _Scored | None:
    """Score the rows of a part with the model of a run; None, with a note, if that is impossible."""
    try:
        recipe = run.recipe()
        with closing(load_predictor(run, recipe)) as predictor:
            data = open_part(recipe, predictor.schema, part)
            if data is None:
                raise ConfigError(f"the recipe has no {part} rows")
            labels, known, predictions, weighted = [], [], [], False
            for batch, predicted in predictor.scored(data.batches()):
                assert batch.labels is not None
                labels.append(batch.labels)
                mask = np.ones(batch.labels.shape, bool) if batch.label_mask is None else batch.label_mask
                known.append(mask)
                predictions.append(predicted)
                weighted |= batch.weights is not None
            rows, kinds = np.concatenate(predictions), predictor.schema.labels
            return _Scored(np.concatenate(labels), np.concatenate(known), rows, weighted, kinds)
    except (CheckpointError, ConfigError, DataError, StoreError) as error:
        notes.append(f"{run}: no test over rows, because they could not be scored: {error.what}")
        return None


def _over_rows(
    first: _Scored | None, other: _Scored | None, names: str, notes: list[str]
) -> Iterator[PairedTest]:
    """Yield the tests over the rows that two models have scored."""
    if first is None or other is None:
        return
    between = f"{names}: no test over rows"
    if first.weighted or other.weighted:
        notes.append(f"{between}, because rows have weights")
    elif not np.array_equal(first.labels, other.labels) or not np.array_equal(first.known, other.known):
        notes.append(f"{between}, because their labels differ, so they are not the same rows")
    else:
        column = 0
        for at, label in enumerate(first.kinds):
            chosen, width = first.known[:, at], slice(column, column + label.outputs)
            scores = [model.predictions[chosen, width].astype(np.float64) for model in (first, other)]
            prefix = f"{label.name} " if len(first.kinds) > 1 else ""
            yield from _of_label(label, first.labels[chosen, at], scores, prefix)
            column += label.outputs


def _of_label(
    label: Label, truth: npt.NDArray[np.float32], scores: Sequence[Floats], prefix: str
) -> Iterator[PairedTest]:
    if label.implicit or len(truth) < 2:
        return
    rows = counted(len(truth), "row")
    if label.kind == "binary" and 2 <= (truth == 1).sum() <= len(truth) - 2:  # one row has no variance
        difference = delong(truth == 1, *(of_model[:, 0] for of_model in scores))
        yield PairedTest(f"{prefix}AUC", difference, f"DeLong, {rows}")
    losses = [_losses(label, truth, of_model) for of_model in scores]
    name = "squared error" if label.kind == "regression" else "logloss"
    yield PairedTest(f"{prefix}{name}", paired_t(*losses), f"paired t, {rows}")


def _losses(label: Label, truth: npt.NDArray[np.float32], scores: Floats) -> Floats:
    """Return the squared error of each row, or the negative logarithm of the probability of its label."""
    if label.kind == "regression":
        return np.square(scores[:, 0] - truth.astype(np.float64))
    if label.kind == "binary":
        chances = np.where(truth == 1, scores[:, 0], 1 - scores[:, 0])
    else:
        chances = np.take_along_axis(scores, truth[:, None].astype(np.int64), axis=1)[:, 0]
    losses: Floats = -np.log(np.clip(chances, EPSILON, 1.0))
    return losses
