"""Each model of the next item, trained for 200 steps with a loss, equals PyTorch's own layers over padded
histories, trained for as many with `torch.optim`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from satrap import models
from satrap.batch import Batch, Jagged, one_id_each
from satrap.data.catalogue import Catalogue
from satrap.dense import WorkerGroup
from satrap.losses import BPR, PairLoss, SampledSoftmax
from satrap.train.step.pair_loss import ComparingLoss
from tests.models.retrieval.histories import LENGTHS, LONGEST, SCHEMA, WIDTH, looked_up, stirred
from tests.support.plain_losses import plain_loss

STEPS, IDS, HIDDEN = 200, 12, 5
TABLES = ("movie", "genre")


class Padded(nn.Module):
    """A model of the next item with PyTorch's own layers, which starts with the weights of one of satrap."""

    def __init__(self, name: str, model: Any, tables: dict[str, Tensor], every_event: bool) -> None:
        super().__init__()
        self.name, self.every_event, self.masked = name, every_event, getattr(model, "masked", 0.0)
        self.rows = nn.ModuleDict({key: nn.Embedding(IDS, WIDTH) for key in TABLES})
        self.nothing, self.mask = nn.Parameter(torch.empty(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        if name == "gru4rec":
            self.gru, self.project = nn.GRU(WIDTH, HIDDEN, batch_first=True), nn.Linear(HIDDEN, WIDTH)
        else:
            layer = nn.TransformerEncoderLayer(
                WIDTH, 2, 4 * WIDTH, 0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.positions = nn.Parameter(torch.empty(LONGEST + (name == "bert4rec"), WIDTH))
        self.double()
        with torch.no_grad():
            for own, other in self.counterparts(model, tables):
                own.copy_(other)

    def counterparts(self, model: Any, tables: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every weight, and what equals it in the model of satrap."""
        yield from ((self.rows[key].weight, tables[key]) for key in TABLES)  # type: ignore[misc]
        yield self.nothing, model.nothing
        if self.name == "gru4rec":
            # The update gate of satrap is the part that is new, PyTorch's the part that stays.
            kept = torch.ones(3 * HIDDEN, dtype=torch.float64)
            kept[HIDDEN : 2 * HIDDEN] = -1
            [layer] = model.encoder.layers
            for kind in ("ih", "hh"):
                yield getattr(self.gru, f"weight_{kind}_l0"), getattr(layer, f"weight_{kind}") * kept[:, None]
                yield getattr(self.gru, f"bias_{kind}_l0"), getattr(layer, f"bias_{kind}") * kept
            yield from zip(self.project.parameters(), model.project.parameters(), strict=True)
            return
        yield self.positions, model.encoder.positions
        if self.name == "bert4rec":
            yield self.mask, model.mask
        for plain, block in zip(self.blocks.layers, model.encoder.blocks, strict=True):
            parts = [block.project, block.out, block.up, block.down, block.norm, block.last_norm]
            yield from zip(plain.parameters(), (p for each in parts for p in each.parameters()), strict=True)
        yield from zip(self.blocks.norm.parameters(), model.encoder.norm.parameters(), strict=True)  # type: ignore[union-attr]

    def items(self, ids: Any) -> Tensor:
        """Return the vectors of items from the ids of both features."""
        vectors = [self.rows[key](torch.from_numpy(np.asarray(i).astype(np.int64))) for key, i in ids.items()]
        return torch.stack(vectors).sum(0)

    def encoded(self, events: list[Tensor]) -> Tensor:
        """Return the padded outputs at the events of histories, none of which is empty."""
        lengths = torch.tensor([len(each) for each in events])
        steps = torch.arange(int(lengths.max()))
        x = pad_sequence(events, batch_first=True)
        if self.name == "gru4rec":
            found: Tensor = self.project(self.gru(x)[0])
            return found
        x = x + self.positions[(lengths[:, None] - 1 - steps).clamp(min=0)]
        later = (steps[:, None] < steps) if self.name == "sasrec" else None
        outputs: Tensor = self.blocks(x, later, steps >= lengths[:, None])
        return outputs

    def pairs(self, batch: Batch) -> tuple[Tensor, Tensor, list[int]]:
        """Return the queries, and vectors and ids of their items."""
        own = self.items({key: batch.ids[key].values for key in TABLES})
        histories = {"movie": batch.ids["history"], "genre": batch.ids["genres"]}
        events = self.items({key: each.values for key, each in histories.items()})
        ids, bounds = batch.ids["history"].values.tolist(), batch.ids["history"].offsets
        hidden = torch.rand(len(events)) < self.masked
        assert bounds is not None
        parts = [range(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        scale = 1.0 if self.name == "gru4rec" else math.sqrt(WIDTH)
        tokens = torch.where(hidden[:, None], self.mask, events * scale)
        ends = [self.mask[None]] if self.name == "bert4rec" else []
        outputs = iter(self.encoded([torch.cat([tokens[[*part]], *ends]) for part in parts if part]))
        queries, items, item_ids = [], [], []
        for sample, part in enumerate(parts):
            output = next(outputs) if part else self.nothing[None]
            queries.append(output[max(len(part) - 1 + len(ends), 0) if part else 0])
            items.append(own[sample])
            item_ids.append(int(batch.ids["movie"].values[sample]))
            for place, event in enumerate(part):
                if hidden[event] if ends else place > 0 and self.every_event:
                    queries.append(output[place if ends else place - 1])
                    items.append(events[event])
                    item_ids.append(ids[event])
        return torch.stack(queries), torch.stack(items), item_ids


def batches(seed: int = 0) -> list[Batch]:
    """Return some batches of histories, the empty one included, whose ids count rows."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(4):
        lengths = random.permutation(LENGTHS)
        offsets, size = np.cumsum([0, *lengths]), len(lengths)
        many = {
            key: Jagged(random.integers(1, IDS, offsets[-1]).astype(np.uint64), offsets)
            for key in ("history", "genres")
        }
        one = {key: one_id_each(random.integers(1, IDS, size).astype(np.uint64)) for key in ("user", *TABLES)}
        found.append(Batch(size, many | one, labels=np.ones((size, 1), np.float32)))
    return found


@pytest.mark.parametrize(
    ("name", "options", "loss"),
    [
        ("sasrec", {"every_event": True}, SampledSoftmax(negatives=4, logq=True)),
        ("gru4rec", {"every_event": True, "hidden": HIDDEN}, BPR(negatives=4)),
        ("bert4rec", {"masked": 0.4}, SampledSoftmax(negatives=4, temperature=0.5)),
        pytest.param("sasrec", {}, BPR(negatives=4), marks=pytest.mark.slow),
        pytest.param(
            "gru4rec", {"hidden": HIDDEN}, SampledSoftmax(negatives=4, logq=True), marks=pytest.mark.slow
        ),
    ],
)
def test_two_hundred_steps_equal_plain_pytorch(name: str, options: dict[str, Any], loss: PairLoss) -> None:
    torch.manual_seed(0)
    model: Any = stirred(models.create(name, SCHEMA, dropout=0.0, **options)).double()
    sizes = {"movie": WIDTH, "genre": WIDTH, "user": 4}
    tables = {key: torch.randn(IDS, n, dtype=torch.float64, requires_grad=True) for key, n in sizes.items()}
    plain = Padded(name, model, tables, every_event=options.get("every_event", False))
    ids = np.arange(1, IDS, dtype=np.uint64)
    drawn_from = Batch(len(ids), {"movie": one_id_each(ids), "genre": one_id_each(ids[::-1].copy())})
    counts = Catalogue("movie", drawn_from, np.arange(1.0, IDS))
    at = ComparingLoss(loss, SCHEMA, TABLES, counts, WorkerGroup(), 3)
    ours = torch.optim.Adam([*model.parameters(), *(tables[key] for key in TABLES)], lr=0.01)
    theirs = torch.optim.Adam(plain.parameters(), lr=0.01)
    read = batches()
    losses = []
    for step in range(STEPS):
        batch = at.with_candidates(read[step % len(read)], step)
        embedded = looked_up(batch, tables)
        embedded.labels = torch.ones(batch.size, 1, dtype=torch.float64)
        torch.manual_seed(step)
        own = at(model(embedded), embedded)
        torch.manual_seed(step)
        queries, items, item_ids = plain.pairs(batch)
        assert batch.candidates is not None
        of_drawn = {key: batch.candidates.ids[key].values for key in TABLES}
        drawn = plain.items(of_drawn), of_drawn["movie"]
        other = plain_loss(loss, queries, (items, np.array(item_ids, np.uint64)), drawn, counts)
        losses.append((own.item(), other.item()))
        for optimizer, value in ((ours, own), (theirs, other)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    np.testing.assert_allclose(*np.array(losses).T, atol=1e-5)
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.1
    for weight, expected in plain.counterparts(model, tables):
        torch.testing.assert_close(weight, expected, atol=1e-5, rtol=1e-5)
