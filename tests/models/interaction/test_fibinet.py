"""What a FiBiNET is made of; `tests/models/test_plain.py` compares it with its formula."""

import torch

from satrap.models import FiBiNET
from tests.models.helpers import make_batch, make_schema


def test_pairs_with_the_unit_matrix_are_products():
    schema = make_schema(dims=(4, 4, 4), numbers=1, labels=("a", "b"))
    for bilinear, count in (("all", 1), ("each", 3), ("pair", 6)):
        model = FiBiNET(schema, bilinear=bilinear)
        assert model.products.weight.shape == (count, 4, 4)
        with torch.no_grad():
            model.products.weight.copy_(torch.eye(4).expand(count, 4, 4))
        batch = make_batch(model, schema)
        first, pairs = model.inputs(batch)
        fields = [*(rows[:, :4] for rows in batch.embeddings.values()), batch.numeric * model.numbers.weight]
        expected = [fields[i] * fields[j] for i in range(4) for j in range(i + 1, 4)]
        torch.testing.assert_close(pairs[:, :24], torch.cat(expected, dim=1))
        torch.testing.assert_close(first, sum(rows[:, 4:] for rows in batch.embeddings.values()))


def test_a_field_without_weight_has_no_products():
    schema = make_schema(dims=(4, 4, 4), numbers=0)
    model = FiBiNET(schema, reduction=1)
    with torch.no_grad():
        for layer in (model.weigh.down, model.weigh.up):
            layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.0, 1.0])))
    batch = make_batch(model, schema)
    weighted = model.inputs(batch)[1][:, 12:].unflatten(1, (3, 4))  # pairs 01, 02, 12
    assert not weighted[:, [0, 2]].any()
    assert weighted[:, 1].any()
