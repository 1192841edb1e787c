import inspect

import pytest
import torch

from satrap import optim
from satrap.config.keys import DENSE_OPTIMIZERS, EMBEDDING_OPTIMIZERS

TORCH = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def test_every_embedding_optimizer_has_keys() -> None:
    assert set(EMBEDDING_OPTIMIZERS) == set(optim.names())


@pytest.mark.parametrize("name", list(DENSE_OPTIMIZERS))
def test_dense_optimizers_have_the_defaults_of_torch(name: str) -> None:
    parameters = inspect.signature(TORCH[name]).parameters
    for key, info in DENSE_OPTIMIZERS[name].model_fields.items():
        if key not in ("name", "lr"):
            default = parameters[key].default
            assert info.default == (list(default) if isinstance(default, tuple) else default), key
