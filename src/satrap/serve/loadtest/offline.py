"""Compares answers with the scores of `satrap predict` for the same rows and the step of each answer."""

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
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import MANIFEST, read_manifest, reading_settings
from satrap.config import Recipe
from satrap.data import read
from satrap.data.encode.encoder import MISSING
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.loadtest.generator import RequestOutcome
from satrap.serve.loadtest.rows import columns_of
from satrap.train.step.loss import prediction_names

Scores = npt.NDArray[np.float64]


@dataclass(slots=True)
class Comparison:
    """Counts of right and wrong answers.

    Attributes:
        right: answers that match the offline scores of their step.
        wrong: answers that do not match.
        unknown: answers from steps whose versions no longer exist.
        largest: largest absolute difference of a score.
        wrong_steps: steps of the wrong answers.
    """

    right: int = 0
    wrong: int = 0
    unknown: int = 0
    largest: float = 0.0
    wrong_steps: set[int] = field(default_factory=set)


def scores_in(body: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """Return the scores of a JSON answer of /v1/score, by prediction."""
    predictions = orjson.loads(body)["predictions"]
    return {name: np.array(values, np.float32) for name, values in predictions.items()}


def compared(
    outcomes: Sequence[RequestOutcome],
    requests: Sequence[Mapping[str, Any]],
    folder: RunFolder,
    recipe: Recipe,
    tolerance: float = 1e-6,
) -> Comparison:
    """Compare answers with the scores of a run's versions; each version is loaded once.

    Args:
        outcomes: outcomes whose `content` comes from `scores_in`.
        requests: the rows of each body.
        folder: the run folder.
        recipe: the run's recipe.
        tolerance: allowed difference of a score: `tolerance * (1 + |offline score|)`.

    Raises:
        CheckpointError: a version is damaged.
    """
    comparison = Comparison()
    by_step: dict[int, list[RequestOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.answered:
            by_step[outcome.step].append(outcome)
    tables = [columns_of(request) for request in requests]
    for step, answers in sorted(by_step.items()):
        places = places_of(folder, recipe, step)
        if not places:
            comparison.unknown += len(answers)
            continue
        bodies = sorted({answer.body for answer in answers})
        # A float16 feed and a snapshot may both have the step; a server answers with one of them.
        candidates = [offline(folder, recipe, place, tables, bodies) for place in places]
        for answer in answers:
            differences = [
                _difference(answer.content, scores[answer.body], tolerance) for scores in candidates
            ]
            largest, right = min(differences, key=lambda pair: (not pair[1], pair[0]))
            comparison.largest = max(comparison.largest, largest)
            comparison.right += right
            comparison.wrong += not right
            if not right:
                comparison.wrong_steps.add(step)
    return comparison


def places_of(folder: RunFolder, recipe: Recipe, step: int) -> list[str]:
    """Return the places of a training step's model: in the feed, in the snapshots, the trained model."""
    series = [Series(folder.feed_place(recipe)), Series(folder.snapshots(recipe))]
    places = [versions.place(step) for versions in series if step in versions.steps()]
    model = Storage(str(folder.model))
    if model.exists(MANIFEST):
        with reading_settings(model.url):
            if int(read_manifest(model).settings["steps"]) == step:
                places.append(model.url)
    return places


def offline(
    folder: RunFolder,
    recipe: Recipe,
    place: str,
    tables: Sequence[Mapping[str, list[Any]]],
    bodies: Sequence[int],
) -> dict[int, dict[str, Scores]]:
    """Load the model at a place, and return body -> prediction -> scores of some bodies."""
    with closing(load_predictor(folder, recipe, place)) as predictor:
        schema = predictor.schema.without_labels()
        names = [name for label in predictor.schema.labels for name in prediction_names(label)]
        scores_of_body = {}
        for body in bodies:
            columns = dict(tables[body])
            size = len(next(iter(columns.values())))
            rows = read(columns, schema, batch_size=size)
            rows = rows.with_options(missing=tuple(recipe.sections.data.missing or MISSING))
            scores = predictor.predict(rows).astype(np.float64)
            scores_of_body[body] = dict(zip(names, scores.T, strict=True))
    return scores_of_body


def _difference(
    given: Mapping[str, npt.NDArray[np.float32]], wanted: Mapping[str, Scores], tolerance: float
) -> tuple[float, bool]:
    """Return the largest difference of the scores, and whether all are within the tolerance."""
    if given.keys() != wanted.keys() or any(len(given[name]) != len(wanted[name]) for name in wanted):
        return float("inf"), False
    largest, right = 0.0, True
    for name, scores in wanted.items():
        difference = np.abs(given[name] - scores)
        largest = max(largest, float(difference.max()))
        right = right and bool((difference <= tolerance * (1 + np.abs(scores))).all())
    return largest, right
