"""Text about the sharding of a recipe's network."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import torch
from torch import nn

from satrap.batch import EmbeddedBatch
from satrap.config import Recipe
from satrap.dense.memory.initial_weights import initial_weights
from satrap.dense.parallel.stages import chain_steps, described, stage_cuts, stages_of
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.embedding import EmbeddingPlan, Embeddings
from satrap.exchange import LocalExchange
from satrap.launch.build import mesh_of, tables_for
from satrap.launch.network import make_model
from satrap.runtime.user_code import blaming
from satrap.schema import Schema
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from satrap.train.step.dummy_batch import blank_batch

MOST_PARAMETERS = 1 << 30
"""Largest network whose stages are also computed here, which draws each parameter."""


def described_mesh(recipe: Recipe, schema: Schema) -> str:
    """Return a description of the mesh; empty if each worker has the whole network.

    Raises:
        ConfigError: the network does not support the mesh, see `tensor_plan` and `stages_of`.
        OwnCodeError: the user's model failed.
    """
    mesh = mesh_of(recipe)
    if mesh.whole:
        return ""
    model = make_model(recipe, schema, in_parts=True)
    layout = ("dense", "layout" if recipe.sections.dense.layout else "mesh")
    if mesh.pipeline > 1:
        place = ("dense",) if mesh.stages else layout
        recipe.located(place, chain_steps, model, mesh)
        if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
            return f"mesh: {mesh}"
        cut = partial(stages_of, model.eval(), mesh, _blank(recipe, schema, model))
        with torch.no_grad(), blaming("your own code failed"):
            record = initial_weights(model)
            cutting = recipe.located(place, cut if record is None else partial(record.computed, model, cut))
        stages = cutting.stages
        plan = recipe.located(place, stage_cuts, model, mesh, stages)
        text = f"mesh: {mesh}; stages: {described(stages)}"
    else:
        plan = recipe.located(layout, tensor_plan, model, mesh.tensor)
        text = f"mesh: {mesh}"
    cuts = f"; sharded layers: {', '.join(f'{name} ({cut})' for name, cut in plan.items())}"
    return text + (cuts if plan else "")


def _blank(recipe: Recipe, schema: Schema, model: nn.Module) -> EmbeddedBatch:
    tables = tables_for(recipe, schema, model)
    with closing(LocalExchange(open_store(StoreConfig(), tables))) as exchange:
        plan = EmbeddingPlan(schema, exchange.groups)
    return blank_batch(plan, Embeddings(plan, torch.device("cpu")))
