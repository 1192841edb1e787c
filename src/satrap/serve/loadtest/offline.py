"""Compares answers with what `satrap predict` says of the same rows at the step that an answer names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from satrap.checkpoint import Series
from satrap.checkpoint.manifest import MANIFEST, read_manifest, reading_settings
from satrap.checkpoint.storage import Storage
from satrap.config import Recipe
from satrap.data import read
from satrap.data.encode import MISSING
from satrap.launch.folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.loadtest.generator import Outcome
from satrap.serve.loadtest.rows import columns_of
from satrap.train.loss import prediction_names

Scores = npt.NDArray[np.float64]


@dataclass(slots=True)
class Comparison:
    """How many answers are right.

    Attributes:
        right: answers that are equal to the offline scores of their step.
        wrong: answers that are not.
        unknown: answers of steps whose versions are not there any more.
        largest: largest difference of a score, absolute.
    """

    right: int = 0
    wrong: int = 0
    unknown: int = 0
    largest: float = 0.0
    wrong_steps: set[int] = field(default_factory=set)


def scores_in(body: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """Return the scores of an answer to /v1/score in JSON, by prediction."""
    predictions = orjson.loads(body)["predictions"]
    return {name: np.array(values, np.float32) for name, values in predictions.items()}


def compared(
    outcomes: Sequence[Outcome],
    requests: Sequence[Mapping[str, Any]],
    folder: RunFolder,
    recipe: Recipe,
    tolerance: float = 1e-6,
) -> Comparison:
    """Compare answers with the scores of a run's versions, each of which is loaded once.

    Args:
        outcomes: their `content` is that of `scores_in`.
        requests: the rows of each body.
        folder: of the run.
        recipe: of the run.
        tolerance: largest difference of a score, and of a score divided by the right one.

    Raises:
        CheckpointError: a version is damaged.
    """
    found = Comparison()
    by_step: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.answered:
            by_step[outcome.step].append(outcome)
    tables = [columns_of(request) for request in requests]
    for step, answers in sorted(by_step.items()):
        places = places_of(folder, recipe, step)
        if not places:
            found.unknown += len(answers)
            continue
        bodies = sorted({answer.body for answer in answers})
        # A float16 feed and a snapshot may both have the step; a server answers with one of them.
        wanted = [offline(folder, recipe, place, tables, bodies) for place in places]
        for answer in answers:
            differences = [_difference(answer.content, one[answer.body], tolerance) for one in wanted]
            largest, right = min(differences, key=lambda pair: (not pair[1], pair[0]))
            found.largest = max(found.largest, largest)
            found.right += right
            found.wrong += not right
            if not right:
                found.wrong_steps.add(step)
    return found


def places_of(folder: RunFolder, recipe: Recipe, step: int) -> list[str]:
    """Return where the model of a training step is: version of the feed, snapshot, trained model."""
    series = [Series(folder.feed_place(recipe)), Series(folder.snapshots(recipe))]
    found = [one.place(step) for one in series if step in one.steps()]
    model = Storage(str(folder.model))
    if model.exists(MANIFEST):
        with reading_settings(model.url):
            if int(read_manifest(model).settings["steps"]) == step:
                found.append(model.url)
    return found


def offline(
    folder: RunFolder,
    recipe: Recipe,
    place: str,
    tables: Sequence[Mapping[str, list[Any]]],
    bodies: Sequence[int],
) -> dict[int, dict[str, Scores]]:
    """Return the scores of some bodies by a model that is loaded for them, by prediction."""
    with closing(load_predictor(folder, recipe, place)) as predictor:
        schema = predictor.schema.without_labels()
        names = [name for label in predictor.schema.labels for name in prediction_names(label)]
        found = {}
        for body in bodies:
            columns = dict(tables[body])
            size = len(next(iter(columns.values())))
            rows = read(columns, schema, batch_size=size)
            rows = rows.with_options(missing=tuple(recipe.sections.data.missing or MISSING))
            scores = predictor.predict_all(rows).astype(np.float64)
            found[body] = dict(zip(names, scores.T, strict=True))
    return found


def _difference(
    given: Mapping[str, npt.NDArray[np.float32]], wanted: Mapping[str, Scores], tolerance: float
) -> tuple[float, bool]:
    """Return the largest difference of scores, and whether all are within the tolerance."""
    if given.keys() != wanted.keys() or any(len(given[name]) != len(wanted[name]) for name in wanted):
        return float("inf"), False
    largest, right = 0.0, True
    for name, scores in wanted.items():
        difference = np.abs(given[name] - scores)
        largest = max(largest, float(difference.max()))
        right = right and bool((difference <= tolerance * (1 + np.abs(scores))).all())
    return largest, right
