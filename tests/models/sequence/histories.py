"""A schema with histories of events, batches of it, and a comparison with plain padded networks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.schema import Categorical, Feature, Numeric, Schema

NAMES = ("din", "dien", "bst", "hstu")
"""The models that need a history."""


def event(**changes: Any) -> Categorical:
    return Categorical(**{"dim": 6, "multi": True, "pooling": "none", "sequence": "past", **changes})


FEATURES: dict[str, Feature] = {
    "user": Categorical(dim=4),
    "item": Categorical(dim=6, table="items"),
    "kind": Categorical(dim=3, table="genre"),
    "seen": event(table="items", max_values=8, keep="last"),
    "genre": event(dim=3),
    "rating": Numeric(sequence="past"),
    "price": Numeric(),
}
SCHEMA = Schema(["y"], FEATURES)
ALONE: dict[str, Feature] = {
    "item": Categorical(dim=6, table="items"),
    "seen": event(table="items", max_values=8),
}
"""A target and its history, no other features."""


def make_batch(lengths: list[int], seed: int = 0, schema: Schema = SCHEMA) -> EmbeddedBatch:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64)

    def values(feature: Feature) -> Tensor:
        count = sum(lengths) if getattr(feature, "sequence", None) else len(lengths)
        found = torch.randn(count, getattr(feature, "dim", 1), generator=generator)
        return found.requires_grad_(isinstance(feature, Categorical))

    made = {name: values(feature) for name, feature in schema.features.items()}
    jagged = {name: JaggedRows(made[name], offsets) for g in schema.sequences.values() for name in g.ids}
    return EmbeddedBatch(
        size=len(lengths),
        embeddings={name: jagged.get(name, made[name]) for name in schema.categorical},
        numeric=torch.cat([made[n] for n in schema.numeric_columns], 1)
        if schema.numeric_columns
        else torch.empty(len(lengths), 0),
        events={
            name: JaggedRows(made[name], offsets) for g in schema.sequences.values() for name in g.numbers
        },
    )


def leaves(batch: EmbeddedBatch) -> list[Tensor]:
    return [rows.values if isinstance(rows, JaggedRows) else rows for rows in batch.embeddings.values()]


def taken(batch: EmbeddedBatch, order: list[int]) -> EmbeddedBatch:
    """Samples in another order."""

    def jagged(rows: JaggedRows) -> JaggedRows:
        parts = [rows.samples(i, i + 1).values for i in order]
        offsets = torch.tensor([0, *np.cumsum([len(part) for part in parts])])
        return JaggedRows(torch.cat(parts), offsets)

    embeddings = {
        name: jagged(rows) if isinstance(rows, JaggedRows) else rows[order]
        for name, rows in batch.embeddings.items()
    }
    events = {name: jagged(rows) for name, rows in batch.events.items()}
    return EmbeddedBatch(len(order), embeddings, batch.numeric[order], events=events)


def padded(batch: EmbeddedBatch, names: list[str]) -> tuple[Tensor, Tensor]:
    """Float[size, longest, ...] of the features of a sequence, padded with zeros, and bool[size, longest]."""
    jagged: list[Any] = [batch.events[n] if n in batch.events else batch.embeddings[n] for n in names]
    bounds = jagged[0].offsets.tolist()
    rows = torch.cat([one.values for one in jagged], 1)
    samples = [rows[a:b] for a, b in itertools.pairwise(bounds)]
    real = [torch.ones(len(one), dtype=torch.bool) for one in samples]
    return pad_sequence(samples, batch_first=True), pad_sequence(real, batch_first=True)


def after_steps(
    network: nn.Module, forward: Callable[[EmbeddedBatch], Tensor], schema: Schema = SCHEMA, steps: int = 200
) -> Tensor:
    """Logits of a batch after steps of SGD on random histories; rows of two hundred ids are learnt, too."""
    random = np.random.default_rng(0)
    draw = torch.Generator().manual_seed(0)
    tables = {schema.table_of(name): feature.dim for name, feature in schema.categorical.items()}
    rows = {t: torch.randn(200, dim, generator=draw).requires_grad_() for t, dim in tables.items()}

    def drawn(size: int) -> EmbeddedBatch:
        lengths = random.integers(0, 9, size)
        batch = make_batch(lengths.tolist(), int(random.integers(1000)), schema)
        found = dict[str, Tensor | JaggedRows]()
        for name, feature in schema.categorical.items():
            count = lengths.sum() if feature.sequence else size
            values = rows[schema.table_of(name)][torch.from_numpy(random.integers(0, 200, count))]
            old = batch.embeddings[name]
            found[name] = JaggedRows(values, old.offsets) if isinstance(old, JaggedRows) else values
        return EmbeddedBatch(size, found, batch.numeric, events=batch.events)

    optimizer = torch.optim.SGD([*network.parameters(), *rows.values()], lr=0.05)
    network.train()
    for _ in range(steps):
        batch = drawn(32)
        y = torch.from_numpy(random.integers(0, 2, (32, 1))).float()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(forward(batch), y).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        return forward(drawn(64))


def check_equals_plain(model: nn.Module, plain: Callable[[nn.Module, EmbeddedBatch], Tensor]) -> None:
    """The model and a padded computation with its weights are the same after 200 steps of each."""
    other = copy.deepcopy(model)
    found = after_steps(model, model)
    expected = after_steps(other, lambda batch: plain(other, batch))
    assert found.std() > 0.05
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5, msg=name)


def check_samples_are_independent(model: nn.Module, lengths: list[int]) -> None:
    """A batch is its samples one by one in any order, and so are gradients."""
    batch = make_batch(lengths)
    logits = model(batch)
    single = torch.cat([model(taken(batch, [i])) for i in range(len(lengths))])
    torch.testing.assert_close(logits, single)
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    torch.testing.assert_close(model(taken(batch, order)), logits[order])
    weights = torch.randn(logits.shape)
    tensors = [*model.parameters(), *leaves(batch)]
    whole, parts = (torch.autograd.grad((x * weights).sum(), tensors) for x in (logits, single))
    for one, other, tensor in zip(whole, parts, tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one.abs().sum() > 0, tensor.shape


def check_learns_what_was_seen(make: Callable[..., nn.Module], steps: int = 60, **options: Any) -> None:
    """The label is whether the item was seen before."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 300)
    offsets = np.append(0, np.cumsum(lengths))
    seen, items = rng.integers(0, 12, offsets[-1]), rng.integers(0, 12, 300)
    y = np.array([items[i] in seen[offsets[i] : offsets[i + 1]] for i in range(300)])
    torch.manual_seed(0)
    model, rows = make(Schema(["y"], ALONE), **options), nn.Parameter(torch.randn(12, 6) * 0.01)
    optimizer = torch.optim.Adam([*model.parameters(), rows], lr=0.01)
    bounds = torch.from_numpy(offsets)
    for _ in range(steps):
        history = JaggedRows(rows[torch.from_numpy(seen)], bounds)
        embeddings = {"item": rows[torch.from_numpy(items)], "seen": history}
        logits = model(EmbeddedBatch(300, embeddings, torch.empty(300, 0)))
        optimizer.zero_grad()
        target = torch.from_numpy(y).float().unsqueeze(1)
        nn.functional.binary_cross_entropy_with_logits(logits, target).backward()
        optimizer.step()
    assert roc_auc_score(y, logits.detach()[:, 0]) > 0.98


def check_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    batch = make_batch([3, 0, 8, 5])
    wide = model(batch)
    with torch.autocast("cpu", dtype=dtype):
        short = model(batch)
    torch.testing.assert_close(short.float(), wide, atol=0.05, rtol=0.05)
    short.float().mean().backward()
    for tensor in (*model.parameters(), *leaves(batch)):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert torch.isfinite(tensor.grad).all()


def randomised(model: Any) -> Any:
    """None of its weights is 0."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def check_order_matters(model: Any) -> None:
    """A history gives other logits than the same events in the reverse order."""
    batch, turned = make_batch([3]), make_batch([3])
    for rows in (*turned.embeddings.values(), *turned.events.values()):
        if isinstance(rows, JaggedRows):
            rows.values = rows.values.flip(0)
    assert not torch.allclose(model(batch), model(turned), atol=1e-4)
