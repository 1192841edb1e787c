"""The networks around the cross layers against their formulas."""

import torch

from satrap.models import DCNv2
from tests.models.helpers import make_batch, make_schema


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


def test_stacked_with_bottom_and_rank_equals_dlrm_dcnv2():
    """Rebuilt from the weights alone: bottom MLP, low-rank cross of all vectors, top MLP."""
    torch.manual_seed(1)
    schema = make_schema(dims=(4, 4), numbers=3)
    model = DCNv2(schema, bottom=[5, 4], cross_layers=2, rank=3, structure="stacked", hidden=[7, 6])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # biases, too
    batch = make_batch(model, schema)
    w = {name: parameter for name, parameter in model.named_parameters()}
    dense = batch.numeric
    for layer in (0, 2):
        dense = (dense @ w[f"bottom.{layer}.weight"].T + w[f"bottom.{layer}.bias"]).clamp(min=0)
    x0 = x = torch.cat([*batch.embeddings.values(), dense], dim=1)
    for layer in (0, 1):
        down, up = w[f"cross.{layer}.project.0.weight"], w[f"cross.{layer}.project.1.weight"]
        assert (down.shape, up.shape) == ((3, 12), (12, 3))
        x = x0 * (x @ down.T @ up.T + w[f"cross.{layer}.project.1.bias"]) + x
    for layer in (0, 2):
        x = (x @ w[f"deep.{layer}.weight"].T + w[f"deep.{layer}.bias"]).clamp(min=0)
    expected = x @ w["head.weight"].T + w["head.bias"]
    torch.testing.assert_close(model(batch), expected)
    batch.beside = lambda: torch.cat([*batch.embeddings.values(), batch.numeric], dim=1)
    torch.testing.assert_close(model(batch), expected)  # the trainer's way to `flat` holds the raw numbers


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
