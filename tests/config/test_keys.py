import inspect

import pytest
import torch
from pydantic import ValidationError

from satrap import optim
from satrap.config.keys import DENSE_OPTIMIZERS, EMBEDDING_OPTIMIZERS, Embedding, as_bytes

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


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), (100, 100), ("2TiB", 2 << 40)],
)
def test_sizes(text: object, count: int) -> None:
    assert as_bytes(text) == count
    assert Embedding.model_validate({"memory": text}).memory == count


@pytest.mark.parametrize("text", ["4GB", "GiB", "-1GiB", "", "4 G"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValidationError):
        Embedding.model_validate({"memory": text})
