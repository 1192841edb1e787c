"""The HSTU ranker: what it makes of histories, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from satrap import models
from satrap.batch import JaggedRows
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.dense.parallel.stages import chain_steps
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.models import HSTU
from satrap.schema import Categorical, Feature, Label, Schema
from satrap.settings.mesh import Mesh
from tests.models.sequence.histories import (
    FEATURES,
    SCHEMA,
    check_autocast,
    check_learns_what_was_seen,
    check_samples_are_independent,
    event,
    make_batch,
    randomised,
)


def made(seed: int = 0, schema: Schema = SCHEMA, **options: Any) -> HSTU:
    """A model none of whose weights is 0."""
    torch.manual_seed(seed)
    return randomised(HSTU(schema, **{"width": 8, "hidden": [5], **options}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": 1},
        {"layers": 3, "window": 2},
        {"layers": 3, "window": 2, "global_tokens": 3},
        {"heads": 4},
    ],
    ids=str,
)
def test_a_batch_is_its_samples_one_by_one_in_any_order_and_so_are_gradients(options: dict[str, Any]) -> None:
    check_samples_are_independent(made(**options), [3, 0, 8, 1, 0, 5, 2, 8])


def test_the_logit_depends_on_all_events_of_its_own_history() -> None:
    model, batch = made(), make_batch([3, 4])
    for name in ("seen", "genre"):
        [gradient] = torch.autograd.grad(model(batch)[0, 0], [batch.embeddings[name].values])  # type: ignore[union-attr]
        assert (gradient.abs().sum(1) > 0).tolist() == [True] * 3 + [False] * 4


def test_the_order_of_events_matters() -> None:
    model, batch = made(), make_batch([3])
    turned = make_batch([3])
    for rows in (*turned.embeddings.values(), *turned.events.values()):
        if isinstance(rows, JaggedRows):
            rows.values = rows.values.flip(0)
    assert not torch.allclose(model(batch), model(turned), atol=1e-4)


def test_an_item_and_the_history_share_the_matrix_of_their_table() -> None:
    model = made()
    assert model.tables["item"] == model.tables["seen"] != model.tables["genre"]
    assert len(model.project) == 3


def test_a_model_without_other_features_and_an_empty_batch() -> None:
    alone = Schema(["y"], {"seen": event(max_values=4)})
    model = HSTU(alone)
    assert model(make_batch([2, 0], schema=alone)).shape == (2, 1)
    assert made()(make_batch([])).shape == (0, 1)


def test_outputs_and_first_logits_are_those_of_the_labels() -> None:
    labels = [Label(name="a", mean=0.003), Label(name="b", kind="multiclass", classes=3)]
    logits = HSTU(Schema(labels, FEATURES))(make_batch([2, 0, 7]))
    assert logits.shape == (3, 4)
    torch.testing.assert_close(torch.sigmoid(logits[:, 0]), torch.full((3,), 0.003))


@pytest.mark.parametrize(
    ("features", "options", "what"),
    [
        ({"user": Categorical(dim=4)}, {}, "needs exactly one sequence"),
        ({"seen": event()}, {}, "needs exactly one sequence of features, with max_values"),
        (
            {"seen": event(max_values=3), "more": event(sequence="other", max_values=3)},
            {},
            "needs exactly one sequence",
        ),
        ({**FEATURES, "tags": event(sequence=None)}, {}, "pooling is none in tags"),
        (FEATURES, {"width": 9}, "width 9 must be a multiple of heads 2"),
        (FEATURES, {"window": 0}, "window must be a whole number"),
        (FEATURES, {"window": 2, "global_tokens": 0}, "global_tokens must be a whole number"),
        (FEATURES, {"global_tokens": 2}, "global_tokens needs window"),
        (FEATURES, {"layers": 0}, "layers must be a whole number"),
    ],
)
def test_what_it_cannot_do_is_refused(
    features: dict[str, Feature], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        models.create("hstu", Schema(["y"], features), **options)


def test_the_published_size_is_as_documented() -> None:
    with torch.device("meta"):
        model = HSTU(SCHEMA, layers=5, width=512, heads=4)
    block = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    assert block == pytest.approx(5 * 512**2, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_computes_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check_autocast(HSTU(SCHEMA), dtype)


def test_its_blocks_may_forget_what_they_compute() -> None:
    model, batch = made(layers=3), make_batch([3, 0, 8, 5])
    expected = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
    checkpoint_activations(model)
    found = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
    assert all(map(torch.equal, found, expected))


@pytest.mark.pytorch("2.13")
def test_a_tensor_group_divides_its_mlp_and_stages_are_refused() -> None:
    assert tensor_plan(HSTU(SCHEMA, hidden=[8, 4]), 2) == {"deep.0": "column", "deep.2": "row"}
    with pytest.raises(ConfigError, match="HSTU cannot be split into stages"):
        chain_steps(HSTU(SCHEMA), Mesh(pipeline=2))


def test_a_label_that_the_history_decides_is_learnt() -> None:
    check_learns_what_was_seen(HSTU, width=16, hidden=[16])


def test_with_a_window_an_event_of_a_long_history_takes_as_much_memory_as_of_a_short_one() -> None:
    def kept(events: int, window: int | None, global_tokens: int | None = None) -> float:
        """Bytes for the backward pass, by event."""
        schema = Schema(["y"], {**FEATURES, "seen": event(table="items", max_values=events)})
        found = dict[int, int]()

        def pack(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        options = {"width": 16, "window": window, "global_tokens": global_tokens}
        model, batch = HSTU(schema, **options), make_batch([events], schema=schema)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = model(batch)
        assert logits.requires_grad
        return sum(found.values()) / events

    assert kept(4_000, 50) == pytest.approx(kept(500, 50), rel=0.05)
    assert kept(4_000, 50, 8) == pytest.approx(kept(500, 50, 8), rel=0.05)
    assert kept(4_000, 50, 8) < 1.5 * kept(4_000, 50)
    assert kept(2_000, None) > 3 * kept(500, None)
