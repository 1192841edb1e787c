"""Settings of a checkpoint that say something impossible are an error about the checkpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import satrap
from satrap.errors import SatrapError
from satrap.train import Trainer
from tests.checkpoint.forged import body_of, signed
from tests.support.examples import examples
from tests.support.manifests import json_values, places


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schema = satrap.Schema(["y"], {"user": satrap.Categorical(dim=4)})
    rows = {"user": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    trainer = Trainer(
        satrap.models.create("lr", schema),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.1),
        dense_optimizer=torch.optim.Adam,
    )
    trainer.fit(satrap.data.read(rows, schema, batch_size=2))
    place = tmp_path_factory.mktemp("saved") / "model"
    trainer.save(str(place))
    trainer.close()
    return place


def load(place: Path, body: Any) -> None:
    whole = (place / "manifest.json").read_bytes()
    (place / "manifest.json").write_bytes(signed(body))
    try:
        Trainer.load(str(place)).close()
    finally:
        (place / "manifest.json").write_bytes(whole)


def test_each_setting_that_is_missing(saved: Path) -> None:
    load(saved, body_of(saved))
    optional = {"steps", "eviction", "loss", "metrics", "tables", "dense_optimizer"}
    for name in body_of(saved)["settings"].keys() - optional:
        body = body_of(saved)
        del body["settings"][name]
        with pytest.raises(SatrapError) as caught:
            load(saved, body)
        assert str(saved) in str(caught.value), name


@settings(
    max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_any_other_setting_is_an_error_or_a_trainer(saved: Path, data: st.DataObject) -> None:
    body = body_of(saved)
    *above, last = data.draw(st.sampled_from(places(body["settings"])[1:]))
    holder = body["settings"]
    for key in above:
        holder = holder[key]
    if data.draw(st.booleans()):
        del holder[last]
    else:
        holder[last] = data.draw(json_values)
    with contextlib.suppress(SatrapError):
        load(saved, body)
