"""A trial step of a recipe in this process, before other processes start."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.config import Recipe
from satrap.exchange import Exchange
from satrap.exchange.servers import ClientOptions, ServersExchange, ShardServer
from satrap.launch.build import make_trainer, mesh_of, store_of, wire_of
from satrap.launch.datasets import PARTS, open_part
from satrap.launch.network import make_model
from satrap.runtime.user_code import blaming
from satrap.schema import Schema, Table
from satrap.train import WorkerContext

TRIAL_ROWS = 8
"""Number of samples of the step."""

LARGE_NETWORK = 1 << 26
"""Sharded networks with this number of parameters or more are not tried here."""

COMPILE_SECONDS = 600.0
"""Deadline in seconds: the first run on a machine compiles all kernels, which exceeds the usual deadline."""


def dry_run(recipe: Recipe, schema: Schema) -> None:
    """Take one step with a few rows, over a shard in this process.

    This finds errors in the input while the recipe's lines are known. It also compiles the kernels once,
    instead of in every process. Initial rows from files, and sharded networks of `LARGE_NETWORK` parameters
    or more, are left out, because they may not fit here.
    """
    parts = {part: open_part(recipe, schema, part) for part in PARTS}
    assert parts["train"] is not None
    rows = parts["train"].with_options(batch_size=TRIAL_ROWS, shuffle=False)
    recipe = _without_rows(recipe)
    holders = recipe.sections.holders
    store = store_of(recipe).part(holders)
    with ShardServer("127.0.0.1:0") as server:

        def exchange(tables: Sequence[Table]) -> Exchange:
            return ServersExchange(
                [server.address],
                [table.part(holders) for table in tables],
                store=store,
                wire=wire_of(recipe),
                options=ClientOptions(deadline=COMPILE_SECONDS, heartbeat=60.0),
            )

        context, network = WorkerContext(exchange=exchange, device="cpu"), _in_place_of_large(recipe, schema)
        with closing(make_trainer(recipe, schema, context, network=network)) as trainer:
            with blaming("your own code failed"):
                trainer.fit(rows, steps=1)
                next(trainer.predict(rows, stream=True), None)
            list(trainer.exchange.rows.cut(still=True))


def _in_place_of_large(recipe: Recipe, schema: Schema) -> nn.Module | None:
    """Return a placeholder for a sharded network that may not fit here; None: use the network itself."""
    if mesh_of(recipe).whole:
        return None
    model = make_model(recipe, schema, in_parts=True)
    if sum(parameter.numel() for parameter in model.parameters()) < LARGE_NETWORK:
        return None
    return _StandIn(schema.outputs, getattr(model, "embedding_dims", None))


class _StandIn(nn.Module):
    """Placeholder with the embeddings of a network and without computation."""

    def __init__(self, outputs: int, dims: Mapping[str, int] | None) -> None:
        super().__init__()
        if dims is not None:
            self.embedding_dims = dict(dims)
        self.scale = nn.Parameter(torch.zeros(outputs))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return zeros, float32[size, outputs]."""
        rows = [rows.values if isinstance(rows, JaggedRows) else rows for rows in batch.embeddings.values()]
        total = torch.stack([tensor.sum() for tensor in rows]).sum() if rows else torch.zeros(())
        return (self.scale * total).expand(batch.size, -1)


def _without_rows(recipe: Recipe) -> Recipe:
    sections = recipe.sections
    tables = {name: replace(table, rows=None, frozen=False) for name, table in sections.tables.items()}
    return replace(recipe, sections=sections.model_copy(update={"tables": tables}))
