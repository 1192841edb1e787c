"""The plan of a recipe's dense network: what processes of a mesh need, and which mesh fits some devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.config import Recipe
from satrap.dense.workers import Compression
from satrap.embedding import EmbeddingPlan
from satrap.errors import ConfigError, DataError
from satrap.exchange import LocalExchange
from satrap.exchange.kernels import row_bytes
from satrap.exchange.servers.wire import CODES
from satrap.launch.build import (
    dense_optimizer,
    make_model,
    mesh_of,
    own_functions,
    tables_for,
    training_options,
    wire_of,
)
from satrap.launch.datasets import open_part
from satrap.launch.planning import WITHOUT_NUMBERS
from satrap.own_code import blaming
from satrap.plan.dense import DensePlan, Inputs, Network, Speed, plan_dense
from satrap.schema import Schema
from satrap.store import StoreConfig
from satrap.train.loop import Loss
from satrap.train.loss import LabelLoss

_MANY = 1 << 20
"""Numbers of a gradient, to find how many bytes each takes on its way."""


def plan_network(
    recipe: Recipe, devices: int | None = None, memory: int | None = None, speed: Speed | None = None
) -> DensePlan | None:
    """Return what the dense network of a recipe needs on its mesh, and which mesh fits devices.

    One batch of the training rows is read, for the number of its distinct ids. The network is computed
    without numbers, so it may be larger than this machine.

    Args:
        recipe: what is to be trained.
        devices: how many there are; default: no mesh is proposed.
        memory: bytes of each.
        speed: of each; default: no time is predicted.

    Returns:
        None if the recipe spreads its network over no mesh, and nothing is said of devices.

    Raises:
        ConfigError: the network does not go with the recipe's mesh, or with planning; or the mode is async.
        DataError: no training rows.
    """
    dense = recipe.sections.dense
    spread = bool(dense.sharded) or mesh_of(recipe).size > 1
    if not spread and devices is None and memory is None and speed is None:
        return None
    if recipe.sections.training.mode == "async":
        raise ConfigError(
            "the dense network of mode async is not planned",
            why="its weights are rows of the store",
            fix="use training.mode hybrid or sync",
        )
    mesh = mesh_of(recipe) if spread or devices is None else None
    with blaming(WITHOUT_NUMBERS, ConfigError):
        return plan_dense(_network(recipe), mesh=mesh, devices=devices, memory=memory, speed=speed)


def _network(recipe: Recipe) -> Network:
    schema, options, wire = recipe.schema(), training_options(recipe), wire_of(recipe)
    dense = recipe.sections.dense
    make = partial(make_model, recipe, schema)
    return Network(
        make,
        _inputs(recipe, schema, make),
        dense_optimizer(recipe),
        _loss(recipe, schema),
        precision=options.precision,
        microbatches=options.microbatches,
        checkpoint_activations=options.checkpoint_activations,
        number_bytes=4.0 if wire.compresses else row_bytes(CODES[wire.dense], _MANY) / _MANY,
        offload=offload_of(recipe),
        weights_off=dense.offload is not None and dense.offload.weights,
        compression=Compression(wire.dense, wire.dense_rank) if wire.compresses else None,
    )


def offload_of(recipe: Recipe) -> str:
    """Return where the optimizer is, as `Network` says it; on a device, nothing of it remains there."""
    sections = recipe.sections
    if sections.dense.offload is None:
        return ""
    return "disk" if sections.training.device == "cpu" else "cpu"


def _inputs(recipe: Recipe, schema: Schema, make: Callable[[], nn.Module]) -> Inputs:
    ids = Schema((), schema.categorical, salt=schema.salt)  # nothing else is read
    train = open_part(recipe, ids, "train")
    assert train is not None
    batch = next(iter(train.batches()), None)
    if batch is None:
        raise DataError("there are no training rows", fix="look at data.train")
    with FakeTensorMode():
        tables = tables_for(recipe, schema, make())
    with closing(LocalExchange(StoreConfig().open(tables))) as exchange:
        plan = EmbeddingPlan(schema, exchange.groups)
        return Inputs.of(schema, plan, plan.ticket(batch), recipe.sections.batch_size)


def _loss(recipe: Recipe, schema: Schema) -> Loss:
    labels = [replace(one, mean=one.mean or 1.0, std=one.std or 1.0) for one in schema.labels]
    own: Loss | None = own_functions(recipe, "loss").get("loss")
    return own or LabelLoss(labels)
