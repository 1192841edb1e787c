"""What an xDeepFM is made of; `tests/models/test_plain.py` compares it with its formula."""

import itertools

import torch

from satrap.models import XDeepFM
from satrap.models.layers.fields import CompressedInteraction
from tests.models.helpers import make_batch, make_schema


def test_layer_k_has_products_of_degree_k_plus_1():
    torch.manual_seed(0)
    cin = CompressedInteraction(3, [4, 2, 5]).double()
    fields = torch.randn(6, 3, 2, dtype=torch.float64)
    whole, doubled = cin(fields), cin(2 * fields)
    degrees = torch.tensor([2] * 4 + [3] * 2 + [4] * 5)
    torch.testing.assert_close(doubled, whole * 2.0**degrees)


def test_a_layer_of_ones_sums_all_pairs():
    schema = make_schema(dims=(4, 4, 4), numbers=1)
    model = XDeepFM(schema, cin=[1])
    with torch.no_grad():
        model.cin.layers[0].weight.fill_(1.0)
    batch = make_batch(model, schema)
    fields = [*(rows[:, :4] for rows in batch.embeddings.values()), batch.numeric * model.numbers.weight]
    pairs = sum((a * b).sum(1) for a, b in itertools.product(fields, fields))
    found = model.cin(torch.stack(fields, dim=1))
    torch.testing.assert_close(found[:, 0], pairs, rtol=1e-4, atol=1e-4)
