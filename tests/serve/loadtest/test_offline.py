"""Answers are compared with the scores of exactly the step that they name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.loadtest.generator import RequestOutcome
from satrap.serve.loadtest.offline import compared, places_of, scores_in
from tests.serve.followed import expected, steps
from tests.serve.requests import plain


@pytest.fixture(scope="module")
def outcomes(snapshots: RunFolder, rows: pd.DataFrame) -> list[RequestOutcome]:
    """A right answer of each step."""
    from satrap.serve.loadtest.offline import offline

    recipe = snapshots.recipe()
    found = []
    for step in steps(snapshots):
        [scores] = offline(
            snapshots, recipe, places_of(snapshots, recipe, step)[0], [plain(rows)], [0]
        ).values()
        content = {name: values.astype(np.float32) for name, values in scores.items()}
        found.append(RequestOutcome(0, 0, 0, 0, "200", step, content=content))
    return found


def test_the_scores_of_a_step_are_those_of_its_own_predictor(
    snapshots: RunFolder, rows: pd.DataFrame, outcomes: list[RequestOutcome]
) -> None:
    for one, wanted in zip(outcomes, expected(snapshots, rows).values(), strict=True):
        np.testing.assert_allclose(one.content["clicked_probability"], wanted, rtol=1e-6, atol=1e-6)


def test_right_wrong_and_unknown_answers(
    snapshots: RunFolder, rows: pd.DataFrame, outcomes: list[RequestOutcome]
) -> None:
    first, second, *_ = outcomes
    lying = replace(second, content=first.content)
    partial = replace(first, content={"clicked_probability": first.content["clicked_probability"]})
    short = replace(first, content={name: values[:-1] for name, values in first.content.items()})
    gone = replace(first, step=99_999)
    failed = replace(first, status="503", content=None)
    requests = [{"context": {}, "items": plain(rows)}]
    every = [*outcomes, lying, partial, short, gone, failed]
    found = compared(every, requests, snapshots, snapshots.recipe())
    assert (found.right, found.wrong, found.unknown) == (len(outcomes), 3, 1)
    assert found.wrong_steps == {first.step, second.step}
    assert found.largest == np.inf
    found = compared([*outcomes, lying], requests, snapshots, snapshots.recipe(), tolerance=10)
    assert (found.right, found.wrong) == (len(outcomes) + 1, 0)
    assert 1e-4 < found.largest < 10


def test_the_trained_model_has_its_step(run: RunFolder) -> None:
    assert places_of(run, run.recipe(), 8) == [str(run.model)]
    assert places_of(run, run.recipe(), 7) == []


def test_scores_of_an_answer() -> None:
    found = scores_in(b'{"model":"a","step":1,"predictions":{"x":[0.5,0.25],"y":[1e9,2]}}')
    assert {name: values.tolist() for name, values in found.items()} == {"x": [0.5, 0.25], "y": [1e9, 2.0]}
