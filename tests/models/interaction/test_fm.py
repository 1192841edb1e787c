"""The factorization machine against its definition over all pairs."""

import itertools

import torch

from satrap.models import FM
from tests.models.helpers import make_batch, make_schema
from tests.models.plain import randomise


def vectors_of(model, batch):
    """All fields' vectors: rows without their last columns, and learned vectors times the numbers."""
    vectors = [rows[:, : model.dim] for rows in batch.embeddings.values()]
    learned = model.second.vectors if model.second.vectors is not None else []
    return vectors + [batch.numeric[:, [k]] * v for k, v in enumerate(learned)]


def linear_of(model, batch):
    weights = sum(rows[:, model.dim :] for rows in batch.embeddings.values())
    numbers = batch.numeric @ model.first.weight if model.first.weight is not None else 0
    return weights + numbers + model.first.bias


def test_equals_the_sum_over_all_pairs():
    torch.manual_seed(0)
    for numbers, labels in itertools.product((0, 3), (("y",), ("a", "b"))):
        schema = make_schema(dims=(5,) * 4, numbers=numbers, labels=labels)
        model = FM(schema)
        randomise(model)
        batch = make_batch(model, schema)
        scale = torch.ones(5, 1) if model.second.factors is None else model.second.factors
        pairs = sum((u * v) @ scale for u, v in itertools.combinations(vectors_of(model, batch), 2))
        torch.testing.assert_close(model(batch), linear_of(model, batch) + pairs, rtol=1e-4, atol=1e-4)
