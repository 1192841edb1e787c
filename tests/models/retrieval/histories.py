"""Data of models that predict the next item: a history, and the item that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged, JaggedRows
from satrap.models.layers.encoders import TransformerEncoder

Model = TypeVar("Model", bound=nn.Module)

NAMES = ("sasrec", "gru4rec", "bert4rec")
WIDTH, LONGEST = 8, 6
LENGTHS = [3, 6, 0, 1, 5, 2, 6]
EVENT: dict[str, Any] = {"dim": WIDTH, "multi": True, "pooling": "none", "sequence": "history"}
FEATURES: dict[str, satrap.schema.Feature] = {
    "history": satrap.Categorical(**EVENT, table="movie", max_values=LONGEST, keep="last"),
    "genres": satrap.Categorical(**EVENT, table="genre"),
    "user": satrap.Categorical(dim=4),
    "movie": satrap.Categorical(dim=WIDTH),
    "genre": satrap.Categorical(dim=WIDTH),
}
SCHEMA = satrap.Schema([satrap.Label(name="seen", implicit=True)], FEATURES)


def embedded(lengths: list[int], *, drawn: int | None = None, seed: int = 0) -> EmbeddedBatch:
    """Return a batch of histories of these lengths, with this number of candidates."""
    rng = np.random.default_rng(seed)
    size, offsets = len(lengths), np.cumsum([0, *lengths])
    counts = {"history": offsets[-1], "genres": offsets[-1], "user": size, "movie": size, "genre": size}
    ids = {
        name: Jagged(
            rng.integers(1, 30, n).astype(np.uint64), offsets if name in ("history", "genres") else None
        )
        for name, n in counts.items()
    }
    generator = torch.Generator().manual_seed(seed)
    tables = {
        name: torch.randn(30, 4 if name == "user" else WIDTH, generator=generator)
        for name in ("user", "movie", "genre")
    }

    batch = Batch(size, ids)
    if drawn is not None:
        items = {name: Jagged(rng.integers(1, 30, drawn).astype(np.uint64)) for name in ("movie", "genre")}
        batch.candidates = Batch(drawn, items)
    return looked_up(batch, tables)


def looked_up(batch: Batch, tables: Mapping[str, Tensor]) -> EmbeddedBatch:
    """Return a batch, and its candidates, with the rows that its ids count in tables."""
    rows: dict[str, Any] = {}
    for name, jagged in batch.ids.items():
        values = tables[SCHEMA.table_of(name)][jagged.values.astype(np.int64)].requires_grad_()
        places = jagged.offsets
        rows[name] = values if places is None else JaggedRows(values, torch.from_numpy(places))
    made = EmbeddedBatch(batch.size, rows, torch.zeros(batch.size, 0), source=batch)
    if batch.candidates is not None:
        made.candidates = looked_up(batch.candidates, tables)
    return made


def stirred(model: Model) -> Model:
    """Give every weight of a model a value that is not 0."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def by_loop(model: Any, vector: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield vectors of histories, and gradients of events and weights, from a model and from a loop.

    `vector` returns the vector of a history from its events, float32[events, width].
    """
    results = []
    for way in ("model", "loop"):
        batch, vectors, start = embedded(LENGTHS), [], 0
        history, genres = (batch.embeddings[name].values for name in ("history", "genres"))  # type: ignore[union-attr]
        for length in LENGTHS:
            rows = (history + genres)[start : start + length]
            vectors.append(vector(rows) if length else model.nothing)
            start += length
        found = model.tower_vectors("user", batch) if way == "model" else torch.stack(vectors)
        leaves = [history, *model.parameters()]
        gradients = torch.autograd.grad(found.square().sum(), leaves, allow_unused=True)
        results.append([found.detach(), *(torch.zeros(1) if g is None else g for g in gradients)])
    yield from zip(*results, strict=True)


def transformed(encoder: TransformerEncoder, tokens: Tensor, *, causal: bool) -> Tensor:
    """The output at each token of one sequence, with PyTorch's own layers and the encoder's weights."""
    x = (tokens + encoder.positions[: len(tokens)].flip(0))[None]
    mask = torch.ones(len(tokens), len(tokens)).triu(1).bool() if causal else None
    for block in encoder.blocks:
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        parts: list[Any] = [block.project, block.out, block.up, block.down, block.norm, block.last_norm]  # type: ignore[union-attr]
        weights = [weight for part in parts for weight in part.parameters()]
        names = [name for name, _ in layer.named_parameters()]
        x = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), x, {"src_mask": mask})
    vectors: Tensor = encoder.norm(x[0])
    return vectors
