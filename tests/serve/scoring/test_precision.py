"""Every model that says so computes in bfloat16, close to float32, and others are refused by name."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import ServedModel
from satrap.train import Predictor
from tests.serve.networks import MODELS, ROWS, SCHEMA, saved


class Stubborn(nn.Module):
    """A network that looks at the format of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(17, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return batch.flat().numpy() @ self.head.weight.T.numpy()  # type: ignore[no-any-return]


def scores(url: str, precision: str, model: Any = None) -> Any:
    served = ServedModel("m", Predictor.load(url, model, threads=1), precision=precision)
    try:
        return served.score(served.encode([ScoreRequest(40, {}, ROWS)]))
    finally:
        served.close()


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_close_to_float32(name: str, tmp_path: Path) -> None:
    url = saved(MODELS[name](), tmp_path / "model")
    exact, rounded = scores(url, "float32"), scores(url, "bfloat16")
    assert rounded.dtype == np.float32
    difference = np.abs(exact - rounded).max()
    assert difference < 0.02
    assert difference > 0 or name == "FM" or name == "LR", "these have no products of matrices"


def test_the_weights_of_linear_layers_are_rounded_and_updates_go_on(tmp_path: Path) -> None:
    url = saved(satrap.models.DNN(SCHEMA), tmp_path / "model")
    served = ServedModel("m", Predictor.load(url, threads=1), precision="bfloat16")
    linear = [m for m in served._predictor.model.modules() if isinstance(m, nn.Linear)]
    assert linear
    assert all(layer.weight.dtype == torch.bfloat16 for layer in linear)
    before = scores(url, "bfloat16")
    exact = Predictor.load(url, threads=1)
    weights = {name: 2 * value for name, value in exact.model.state_dict().items()}
    network = deepcopy(served._predictor.model)
    network.load_state_dict(weights)  # as an update does
    served._predictor.model = served._predictor.network = network
    after = served.score(served.encode([ScoreRequest(40, {}, ROWS)]))
    exact.model.load_state_dict(weights)
    wanted = exact.predict(satrap.data.read(ROWS, SCHEMA.without_labels(), batch_size=40))
    assert np.abs(after - wanted).max() < 0.02 < np.abs(after - before).max()
    served.close()
    exact.close()


def test_a_network_that_cannot_is_refused_by_name(tmp_path: Path) -> None:
    url = saved(satrap.models.DNN(SCHEMA), tmp_path / "model")
    predictor = Predictor.load(url, threads=1)
    predictor.model = Stubborn()
    predictor.network = predictor.model
    with pytest.raises(ConfigError, match="model Stubborn cannot compute in bfloat16"):
        ServedModel("m", predictor, precision="bfloat16")
    predictor.close()
