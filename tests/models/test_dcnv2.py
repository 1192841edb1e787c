"""Cross layers against their formula."""

import torch

from satrap.models import DCNv2
from satrap.models.dcnv2 import CrossLayer
from tests.models.helpers import make_batch, make_schema


def test_cross_layer_equals_its_formula():
    torch.manual_seed(0)
    x0, x = torch.randn(4, 6), torch.randn(4, 6)
    full = CrossLayer(6, None)
    weight, bias = full.project[0].weight, torch.randn(6)
    full.project[0].bias.data.copy_(bias)
    torch.testing.assert_close(full(x0, x), x0 * (x @ weight.T + bias) + x)
    low = CrossLayer(6, 2)
    v, u = low.project[0].weight, low.project[1].weight
    assert v.shape == (2, 6)
    assert u.shape == (6, 2)
    torch.testing.assert_close(low(x0, x), x0 * (u @ (v @ x.T)).T + x)


def test_parallel_and_stacked_equal_their_formulas():
    torch.manual_seed(0)
    schema = make_schema()
    for structure in ("parallel", "stacked"):
        model = DCNv2(schema, hidden=[5], cross_layers=2, structure=structure)
        batch = make_batch(model, schema)
        x0 = x = torch.cat([*batch.embeddings.values(), batch.numeric], dim=1)
        for layer in model.cross:
            x = x0 * layer.project(x) + x
        deep = torch.relu(model.deep[0](x0 if structure == "parallel" else x))
        expected = model.head(torch.cat([x, deep], dim=1) if structure == "parallel" else deep)
        torch.testing.assert_close(model(batch), expected)


def test_k_cross_layers_make_a_polynomial_of_degree_k_plus_1():
    model = DCNv2(make_schema(dims=(1,), numbers=0), hidden=[4], cross_layers=3)
    scalars = torch.linspace(-1, 1, 21, dtype=torch.float64).unsqueeze(1)
    x = scalars
    for layer in model.double().cross:
        x = layer(scalars, x)
    powers = scalars ** torch.arange(5)
    solution = torch.linalg.lstsq(powers, x).solution
    torch.testing.assert_close(powers @ solution, x)
    assert solution[4].abs() > 1e-4
