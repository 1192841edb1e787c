"""What a Wukong is made of."""

import torch

from satrap.models import Wukong
from tests.models.helpers import make_batch, make_schema


def test_numbers_become_one_vector_and_layers_are_stacked():
    torch.manual_seed(0)
    schema = make_schema(numbers=2)
    model = Wukong(schema, layers=2, fmb=3, lcb=2, hidden=[5], bottom=[4])
    batch = make_batch(model, schema)
    numbers = model.bottom[2](torch.relu(model.bottom[0](batch.numeric))).clamp(min=0)
    x = torch.stack([numbers, *batch.embeddings.values()], dim=1)
    x = model.layers[1](model.layers[0](x))
    assert x.shape == (6, 5, 8)
    torch.testing.assert_close(model(batch), model.head(torch.relu(model.top[0](x.flatten(1)))))
    assert model.layers[0].residual is not None  # 4 fields become 5
    assert model.layers[1].residual is None
