"""What a FinalNet is made of; `tests/models/test_plain.py` compares it with its formula."""

import torch

from satrap.models import FinalNet
from satrap.schema import Label
from tests.models.helpers import make_batch, make_schema


def test_the_logit_is_the_mean_of_two_blocks():
    torch.manual_seed(0)
    schema = make_schema()
    model = FinalNet(schema, hidden=[6, 4], hidden2=[8])
    batch = make_batch(model, schema)
    blocks = model.head1(model.deep1(batch.flat())), model.head2(model.deep2(batch.flat()))
    torch.testing.assert_close(model(batch), sum(blocks) / 2)


def test_a_new_gate_passes_the_vectors_twice():
    schema = make_schema(dims=(8, 4), numbers=1)
    model = FinalNet(schema, gate=True)
    batch = make_batch(model, schema)
    flat, first = model._inputs(batch)
    assert flat.shape == (6, 13)
    assert first.shape == (6, 2 * 2 * 8 + 1)
    assert torch.equal(first[:, :16], first[:, 16:32])
    assert torch.equal(first[:, :8], batch["c0"])


def test_it_starts_at_a_known_mean():
    schema = make_schema(labels=[Label(name="y", mean=0.2)])
    model = FinalNet(schema)
    torch.testing.assert_close(torch.sigmoid(model(make_batch(model, schema))), torch.full((6, 1), 0.2))
