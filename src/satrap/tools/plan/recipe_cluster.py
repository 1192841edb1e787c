"""The cluster that a recipe needs at some number of parameters, and what its batches ask of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from satrap.config import Recipe
from satrap.embedding import EmbeddingPlan
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.launch.placement import (
    WITHOUT_NUMBERS,
    Facts,
    measured_load,
    tables_and_network,
    training_batches,
)
from satrap.plan import Workload
from satrap.runtime.user_code import blaming
from satrap.schema import Schema, Table
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from satrap.tools.plan.cluster import ClusterPlan, Demand, plan_cluster, read
from satrap.tools.plan.dense import Inputs
from satrap.train.step.dummy_batch import SIZE, blank_ticket


def plan_size(
    recipe: Recipe,
    parameters: float,
    facts: Facts = Facts(),
    *,
    machines: str | None = None,
    hosts: Mapping[str, int] | None = None,
    budget: float | None = None,
    samples: float | None = None,
    notice: Callable[[str], None] = lambda _: None,
) -> ClusterPlan:
    """Return a cluster plan for a recipe whose tables have grown to a number of parameters.

    Args:
        recipe: the recipe to train.
        parameters: number in all tables together; tables grow in proportion to their known rows.
        facts: `batches`, `run` and `rows` are used.
        machines: file of kinds of hosts, see `plan.cluster.read`.
        hosts: kind -> number, see `plan_cluster`.
        budget: maximum cost in $/h.
        samples: number of samples to train on.
        notice: as in `plan`.

    Raises:
        ConfigError: see `plan_cluster` and `read`, or the recipe has no tables.
        DataError: no training rows.
        CheckpointError: `facts.run` has no checkpoint.
    """
    catalog, schema = read(machines), recipe.schema()
    mode = FakeTensorMode()
    tables, model = tables_and_network(recipe, schema, notice, mode)
    counted = measured_load(recipe, schema, tables, 1, facts)
    weights = sum(parameter.numel() for parameter in model.parameters())
    demand = Demand.of(counted, parameters, _forward_flop(recipe, model, tables, mode), weights)
    return plan_cluster(demand, catalog, hosts=hosts, budget=budget, samples=samples)


def counted(
    recipe: Recipe, facts: Facts = Facts(), *, notice: Callable[[str], None] = lambda _: None
) -> tuple[Workload, torch.nn.Module]:
    """Return the lookups that one worker's batches make in a recipe's tables, and its network.

    Raises:
        ConfigError, DataError, CheckpointError: see `plan_size`.
    """
    schema = recipe.schema()
    tables, model = tables_and_network(recipe, schema, notice, FakeTensorMode())
    return measured_load(recipe, schema, tables, 1, facts), model


def _forward_flop(
    recipe: Recipe, model: torch.nn.Module, tables: Sequence[Table], mode: FakeTensorMode
) -> float:
    """Return the floating-point operations of the forward pass for one sample: matrix products only."""
    schema, size = recipe.schema(), SIZE
    with closing(LocalExchange(open_store(StoreConfig(), tables))) as exchange:
        plan = EmbeddingPlan(schema, exchange.groups)
        ticket = blank_ticket(plan)
        if schema.sequences:  # the cost depends on the lengths of sequences
            ids = Schema((), schema.categorical, salt=schema.salt)
            ticket = plan.ticket(next(iter(training_batches(recipe, ids, 1, None))))
            size = ticket.batch.size
        inputs = Inputs.of(schema, plan, ticket, size)
    counter = FlopCounterMode(display=False)
    with mode, counter, torch.no_grad(), blaming(WITHOUT_NUMBERS, ConfigError):
        model(inputs.batch(inputs.leaves()))
    return float(counter.get_total_flops()) / size
