import inspect
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from satrap import optim
from satrap.config import load
from satrap.config.keys.cluster import ClusterKeys
from satrap.config.keys.derive import Keys
from satrap.config.keys.sections import (
    DENSE_OPTIMIZERS,
    OPTIMIZER,
    TrainingKeys,
)

TORCH = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def test_every_embedding_optimizer_has_keys() -> None:
    assert set(OPTIMIZER.models) == set(optim.names())


@pytest.mark.parametrize("name", list(DENSE_OPTIMIZERS))
def test_dense_optimizers_have_the_defaults_of_torch(name: str) -> None:
    parameters = inspect.signature(TORCH[name]).parameters
    for key, info in DENSE_OPTIMIZERS[name].model_fields.items():
        if key not in ("name", "lr"):
            default = parameters[key].default
            assert info.default == (list(default) if isinstance(default, tuple) else default), key


MINIMAL = """
data: {train: rows.csv}
labels: [clicked]
features: {user: {dim: 4}}
model: {name: lr}
"""


def test_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(MINIMAL)
    plain = load(tmp_path / "recipe.yaml").resolved()
    for given in ("labels", "features", "model"):
        del plain[given]
    del plain["data"]["train"]
    process = {"cpu": 1.0, "gpu": 0.0}
    assert plain == {
        "data": {"batch_size": 4096, "global_batch": False, "shuffle": True},
        "salt": 0,
        "embedding": {
            "optimizer": {
                "name": "rowwise_adagrad",
                "lr": 0.05,
                "eps": 1e-10,
                "initial_accumulator": 0.0,
                "weight_decay": 0.0,
            },
            "initial_scale": 0.01,
            "dtype": "float32",
            "device": "cpu",
            "admission": {"min_count": 1, "probability": 1.0, "memory": 16 << 20},
        },
        "dense": {
            "optimizer": {
                "name": "adam",
                "lr": 0.001,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": 0.0,
                "amsgrad": False,
            },
            "mesh": {"tensor": 1, "pipeline": 1},
            "sharded": False,
            "schedule": "1f1b",
            "precision": "float32",
            "checkpoint_activations": False,
            "compile": False,
        },
        "training": {
            "mode": "hybrid",
            "staleness": 4,
            "lookahead": 0,
            "epochs": 1,
            "follow": False,
            "seed": 1,
            "lr_schedule": {"name": "constant", "warmup": 0},
            "plateau": 0.1,
            "patience": 2,
            "monitor": "auc",
            "device": "cpu",
        },
        "cluster": {
            "exchange": "local",
            "shards": 1,
            "workers": 1,
            "loaders": 0,
            "embedding_workers": 0,
            "launcher": "local",
            "resources": {kind: process for kind in ("shard", "worker", "loader", "embedding_worker")},
            "wait": 0.0,
            "wire": {"forward": "float16", "backward": "bfloat16", "dense": "float32", "dense_rank": 4},
            "deadline": 30.0,
            "grace": 60.0,
            "restarts": 3,
            "metrics_host": "127.0.0.1",
        },
        "checkpoint": {"durability": "snapshot"},
        "publish": {"full_every": 100, "dtype": "float32", "keep": 2},
        "serving": {
            "max_items": 10_000,
            "max_bytes": 8 << 20,
            "max_queue": 256,
            "deadline": 1.0,
            "log_share": 1.0,
            "keep": 3,
            "keep_memory": 256 << 20,
            "precision": "float32",
        },
        "tune": {"usual": True},
    }


@pytest.mark.parametrize(
    ("keys", "good", "bad"),
    [
        (TrainingKeys, {"plateau": [1e-9, 0.99, None]}, {"plateau": [0.0, 1.0]}),
        (
            TrainingKeys,
            {"patience": [1, None], "seed": [0], "staleness": [0]},
            {"patience": [0], "seed": [-1]},
        ),
        (
            ClusterKeys,
            {"wait": [0.0], "deadline": [1e-9]},
            {"wait": [-1.0], "deadline": [0.0], "grace": [0.0]},
        ),
    ],
)
def test_limits(keys: type[Keys], good: dict[str, list[object]], bad: dict[str, list[object]]) -> None:
    for key, values in good.items():
        for value in values:
            assert getattr(keys.model_validate({key: value}), key) == value
    for key, values in bad.items():
        for value in values:
            with pytest.raises(ValidationError):
                keys.model_validate({key: value})


@pytest.mark.parametrize("count", [1, 3])
def test_two_betas(count: int) -> None:
    with pytest.raises(ValidationError):
        DENSE_OPTIMIZERS["adam"].model_validate({"name": "adam", "lr": 0.1, "betas": [0.5] * count})
