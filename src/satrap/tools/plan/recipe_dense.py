"""Plans a recipe's dense network: memory per process of a mesh, and the best mesh for given devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.config import Recipe
from satrap.dense.comm.workers import Compression
from satrap.embedding import EmbeddingPlan
from satrap.errors import ConfigError, DataError
from satrap.exchange import LocalExchange
from satrap.exchange.kernels import row_bytes
from satrap.exchange.wire.formats import CODES
from satrap.launch.build import mesh_of, tables_for, training_options, wire_of
from satrap.launch.datasets import open_part
from satrap.launch.network import construct_model, dense_optimizer, own_functions
from satrap.launch.placement import WITHOUT_NUMBERS
from satrap.runtime.user_code import blaming
from satrap.schema import Schema
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from satrap.tools.plan.dense import DensePlan, Inputs, NetworkSpec, Speed, plan_dense
from satrap.train.step.forward_backward import Loss
from satrap.train.step.loss import LabelLoss

_MANY = 1 << 20
"""Size of a sample gradient, to compute the wire bytes per number."""


def plan_network(
    recipe: Recipe, devices: int | None = None, memory: int | None = None, speed: Speed | None = None
) -> DensePlan | None:
    """Return the memory of a recipe's dense network on its mesh, and a mesh for given devices.

    One batch of training rows is read to count its unique ids. The network runs on fake tensors, so it may be
    larger than this machine.

    Args:
        recipe: the recipe to train.
        devices: number of devices; default: no mesh is proposed.
        memory: bytes of each device.
        speed: speed of each device; default: no time is predicted.

    Returns:
        None if the recipe has no mesh and no device settings are given.

    Raises:
        ConfigError: the network does not support the recipe's mesh or planning, or the mode is async.
        DataError: no training rows.
    """
    dense = recipe.sections.dense
    spread = bool(dense.sharded) or mesh_of(recipe).size > 1
    if not spread and devices is None and memory is None and speed is None:
        return None
    if recipe.sections.training.mode == "async":
        raise ConfigError(
            "satrap plan does not support the dense network of mode async",
            why="in async mode the network's weights are rows of the store",
            fix="use training.mode hybrid or sync",
        )
    mesh = mesh_of(recipe) if spread or devices is None else None
    with blaming(WITHOUT_NUMBERS, ConfigError):
        return plan_dense(_network(recipe), mesh=mesh, devices=devices, memory=memory, speed=speed)


def _network(recipe: Recipe) -> NetworkSpec:
    schema, options, wire = recipe.schema(), training_options(recipe), wire_of(recipe)
    dense = recipe.sections.dense
    make = partial(construct_model, recipe, schema)
    return NetworkSpec(
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
        compression=Compression(wire.dense_rank) if wire.compresses else None,
    )


def offload_of(recipe: Recipe) -> str:
    """Return the place of the optimizer state, as in `NetworkSpec`; none of it stays on a GPU."""
    sections = recipe.sections
    if sections.dense.offload is None:
        return ""
    return "disk" if sections.training.device == "cpu" else "cpu"


def _inputs(recipe: Recipe, schema: Schema, make: Callable[[], nn.Module]) -> Inputs:
    ids = Schema((), schema.categorical, salt=schema.salt)  # only ids are read
    train = open_part(recipe, ids, "train")
    assert train is not None
    batch = next(iter(train.batches()), None)
    if batch is None:
        raise DataError("the recipe has no training rows", fix="check data.train")
    with FakeTensorMode():
        tables = tables_for(recipe, schema, make())
    with closing(LocalExchange(open_store(StoreConfig(), tables))) as exchange:
        plan = EmbeddingPlan(schema, exchange.groups)
        return Inputs.of(schema, plan, plan.ticket(batch), recipe.sections.batch_size)


def _loss(recipe: Recipe, schema: Schema) -> Loss:
    labels = [replace(label, mean=label.mean or 1.0, std=label.std or 1.0) for label in schema.labels]
    user_loss: Loss | None = own_functions(recipe, "loss").get("loss")
    return user_loss or LabelLoss(labels)
