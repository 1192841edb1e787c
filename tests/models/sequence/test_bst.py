"""BST: a transformer over a history and its target, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.dense.parallel.stages import chain_steps
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.models import BST
from satrap.schema import Feature, Schema
from satrap.settings.mesh import Mesh
from tests.models.sequence.histories import (
    ALONE,
    FEATURES,
    SCHEMA,
    check_autocast,
    check_equals_plain,
    check_learns_what_was_seen,
    check_order_matters,
    check_samples_are_independent,
    make_batch,
    padded,
    randomised,
)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"layers": 2, "heads": 4, "context": ["genre"]},
    {"pooling": "flat", "layers": 2},
    {"hidden": []},
]
LENGTHS = [3, 0, 8, 1, 0, 5, 2, 8]


def made(**options: Any) -> BST:
    torch.manual_seed(0)
    return BST(SCHEMA, **{"width": 8, "hidden": [5], **options})


def block_of(block: Any, x: Tensor, real: Tensor) -> Tensor:
    """The formula of a transformer's block on padded tokens."""
    size, n, width = x.shape
    parts = (x @ block.project.weight.T + block.project.bias).view(size, n, 3, block.heads, -1)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    weights = torch.softmax(scores.masked_fill(~real[:, None, None], -1e9), dim=3)
    attended = (weights @ v).transpose(1, 2).reshape(size, n, width)
    y = F.layer_norm(x + block.out(attended), [width], block.norm.weight, block.norm.bias)
    fed = F.leaky_relu(y @ block.up.weight.T + block.up.bias) @ block.down.weight.T + block.down.bias
    return F.layer_norm(y + fed, [width], block.last_norm.weight, block.last_norm.bias)


def plain(model: Any, batch: EmbeddedBatch) -> Tensor:
    """Histories of eight events padded at their start, so that the target is the last token of all."""
    context = ["genre"] if model.history.context else []
    compared = [name for name in ("seen", "genre") if name not in context]
    rows, real = padded(batch, [*compared, *context, "rating"])
    width = model.history.width
    tokens = torch.zeros(batch.size, 9, model.project.out_features)
    there = torch.zeros(batch.size, 9, dtype=torch.bool)
    for i, length in enumerate(real.sum(1).tolist()):
        events = rows[i, :length] @ torch.cat([model.project.weight, model.describe.weight], 1).T
        target = torch.cat([batch["item"][i], *([] if context else [batch["kind"][i]])])
        token = torch.cat([events, (target @ model.project.weight.T)[None]])
        at = torch.zeros(9, length + 1)
        at[range(8 - length, 9), range(length + 1)] = 1
        tokens = tokens.index_add(0, torch.tensor([i]), (at @ token)[None])
        there[i, 8 - length :] = True
    assert rows.shape[2] == width + model.history.extra
    x = tokens + model.encoder.positions.flip(0)
    for block in model.encoder.blocks:
        x = block_of(block, x, there)
    x = (x * there.unsqueeze(2)).flip(1).flatten(1) if model.flat else x[:, -1]
    y = torch.cat([x, *(batch[name] for name in ("user", "item", "kind")), batch.numeric], dim=1)
    return model.head(model.deep(y))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_equals_a_plain_padded_network_after_200_steps(options: dict[str, Any]) -> None:
    check_equals_plain(made(**options), plain)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_is_its_samples_one_by_one_in_any_order(options: dict[str, Any]) -> None:
    check_samples_are_independent(randomised(made(**options)), LENGTHS)


def test_the_order_of_events_matters() -> None:
    check_order_matters(randomised(made()))


def test_a_model_without_other_features_and_an_empty_batch() -> None:
    alone = Schema(["y"], ALONE)
    assert BST(alone)(make_batch([2, 0], schema=alone)).shape == (2, 1)
    for pooling in ("target", "flat"):
        assert made(pooling=pooling)(make_batch([])).shape == (0, 1)


NO_KIND = {name: feature for name, feature in FEATURES.items() if name != "kind"}


@pytest.mark.parametrize(
    ("features", "options", "what"),
    [
        (NO_KIND, {}, "BST compares events with a target, but 'genre' has none"),
        (FEATURES, {"width": 9}, "width 9 must be a multiple of heads 2"),
        (FEATURES, {"layers": 0}, "layers must be a whole number"),
        (FEATURES, {"pooling": "mean"}, "pooling"),
    ],
)
def test_what_it_cannot_do_is_refused(
    features: dict[str, Feature], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        models.create("bst", Schema(["y"], features), **options)


def test_the_published_size_is_as_documented() -> None:
    with torch.device("meta"):
        model: Any = models.create("bst", SCHEMA, preset="published")
    assert (len(model.encoder.blocks), model.encoder.blocks[0].heads) == (1, 8)
    assert [layer.out_features for layer in model.deep if isinstance(layer, nn.Linear)] == [1024, 512, 256]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_computes_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check_autocast(BST(SCHEMA, pooling="flat"), dtype)


def test_its_blocks_may_forget_what_they_compute() -> None:
    model, batch = randomised(made(layers=3)), make_batch([3, 0, 8, 5])
    expected = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
    checkpoint_activations(model)
    found = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
    assert all(map(torch.equal, found, expected))


@pytest.mark.pytorch("2.13")
def test_a_tensor_group_divides_its_mlp_and_stages_are_refused() -> None:
    assert tensor_plan(made(hidden=[8, 4]), 2) == {"deep.0": "column", "deep.2": "row"}
    with pytest.raises(ConfigError, match="BST cannot be split into stages"):
        chain_steps(made(), Mesh(pipeline=2))


def test_a_label_that_the_history_decides_is_learnt() -> None:
    check_learns_what_was_seen(BST, steps=100, width=16, hidden=[16])
