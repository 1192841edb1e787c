"""Batches made by hand: what a trainer would hand to a model."""

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.schema import Categorical, Numeric, Schema


def make_schema(dims=(8, 8, 8), numbers=2, labels=("y",)):
    features = {f"c{i}": Categorical(dim=dim) for i, dim in enumerate(dims)}
    return Schema(list(labels), features | {f"n{i}": Numeric() for i in range(numbers)})


def widths(model: nn.Module, schema: Schema) -> dict[str, int]:
    dims = {name: feature.dim for name, feature in schema.categorical.items()}
    return dims | getattr(model, "embedding_dims", {})


def make_batch(model: nn.Module, schema: Schema, size=6, seed=0) -> EmbeddedBatch:
    generator = torch.Generator().manual_seed(seed)
    embeddings = {
        name: torch.randn(size, width, generator=generator, requires_grad=True)
        for name, width in widths(model, schema).items()
    }
    return EmbeddedBatch(
        size=size,
        embeddings=embeddings,
        numeric=torch.randn(size, len(schema.numeric), generator=generator),
    )


def fit(model: nn.Module, schema: Schema, ids: Tensor, numeric: Tensor, y: Tensor, steps: int) -> Tensor:
    """Train on everything at once with Adam and return the logits; `ids` is int64[n, features]."""
    torch.manual_seed(0)
    rows = {
        name: nn.Parameter((torch.rand(int(ids.max()) + 1, width) - 0.5) * 0.02)
        for name, width in widths(model, schema).items()
    }
    optimizer = torch.optim.Adam([*model.parameters(), *rows.values()], lr=0.02)
    for _ in range(steps):
        embeddings = {name: row[ids[:, i]] for i, (name, row) in enumerate(rows.items())}
        logits = model(EmbeddedBatch(size=len(ids), embeddings=embeddings, numeric=numeric))
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, y).backward()
        optimizer.step()
    return logits.detach()
