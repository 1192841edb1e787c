"""Vectors of fields and their interactions, field by field."""

import itertools

import pytest
import torch

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.fields import (
    BilinearInteraction,
    EqualWidth,
    FieldAttention,
    FieldGate,
    FieldNorm,
    NumberVectors,
    SqueezeExcitation,
)
from tests.models.helpers import make_batch, make_schema
from tests.models.plain import randomise


def test_equal_dims_are_the_stack_without_weights():
    schema = make_schema(dims=(8, 8))
    layer = EqualWidth(schema, "X")
    batch = make_batch(layer, schema)
    assert (layer.width, list(layer.parameters()), layer.state_dict()) == (8, [], {})
    assert torch.equal(layer(batch), batch.stack())
    block = batch.stack()
    views = {name: block[:, i] for i, name in enumerate(batch.embeddings)}
    blocked = EmbeddedBatch(batch.size, views, batch.numeric, blocks=[(tuple(views), block)])
    assert layer(blocked) is block


@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize(("width", "mapped"), [(None, "c0 c2"), (3, "c0 c1"), (4, "c0 c1 c2")])
def test_each_feature_of_another_dim_has_a_matrix(width, mapped, tail):
    schema = make_schema(dims=(2, 7, 3))
    layer = EqualWidth(schema, "X", width, tail=tail)
    layer.embedding_dims = {name: one.dim + tail for name, one in schema.categorical.items()}
    batch = make_batch(layer, schema)
    found, matrices = layer(batch), dict(zip(mapped.split(), layer.maps, strict=True))
    assert found.shape == (6, 3, (width or 7) + tail)
    for place, (name, rows) in enumerate(batch.embeddings.items()):
        dim = schema.categorical[name].dim
        vectors = rows[:, :dim] @ matrices[name].weight.T if name in matrices else rows[:, :dim]
        torch.testing.assert_close(found[:, place], torch.cat([vectors, rows[:, dim:]], dim=1))


def test_impossible_widths_are_refused():
    with pytest.raises(ConfigError, match="vector_width must be a whole number >= 1, got 0"):
        EqualWidth(make_schema(), "X", 0)


def test_numbers_are_vectors_too():
    layer = NumberVectors(2, 3)
    vectors, numeric = torch.randn(5, 4, 3), torch.randn(5, 2)
    found = layer(vectors, numeric)
    assert torch.equal(found[:, :4], vectors)
    for k in range(2):
        torch.testing.assert_close(found[:, 4 + k], numeric[:, [k]] * layer.weight[k])
    assert NumberVectors(0, 3)(vectors, numeric[:, :0]) is vectors


@pytest.mark.parametrize("dims", [(4, 4), (2, 5, 3)])
def test_vectors_are_normalised_each_by_itself(dims):
    torch.manual_seed(0)
    layer, flat = FieldNorm(dims, 2), torch.randn(6, sum(dims) + 2)
    randomise(layer)
    found, start = layer(flat), 0
    for dim in dims:
        piece = slice(start, start + dim)
        norm = torch.nn.functional.layer_norm(flat[:, piece], [dim], layer.weight[piece], layer.bias[piece])
        torch.testing.assert_close(found[:, piece], norm)
        start += dim
    assert torch.equal(found[:, start:], flat[:, start:])


def test_a_gate_multiplies_by_mixtures_of_the_fields():
    torch.manual_seed(0)
    layer, x = FieldGate(3), torch.randn(5, 3, 4)
    assert torch.equal(layer(x), torch.cat([x, x], dim=1))
    randomise(layer)
    mixed = torch.einsum("of,nfd->nod", layer.mix.weight, x) + layer.mix.bias[:, None]
    torch.testing.assert_close(layer(x), torch.cat([x, x * (1 + mixed)], dim=1))


def test_no_field_starts_without_a_weight():
    for seed in range(20):
        torch.manual_seed(seed)
        layer = SqueezeExcitation(4, reduction=4)
        x = torch.rand(5, 4, 3)
        on = layer(x - x.mean((1, 2), keepdim=True)) != 0
        assert (on.all((1, 2)) | ~on.any((1, 2))).all()
        assert layer(x).any() or layer(-x).any()


@pytest.mark.parametrize(
    ("sharing", "matrix"), [("all", lambda i, p: 0), ("each", lambda i, p: i), ("pair", lambda i, p: p)]
)
def test_bilinear_products_of_all_pairs(sharing, matrix):
    torch.manual_seed(0)
    layer, x = BilinearInteraction(4, 3, sharing), torch.randn(5, 4, 3)
    pairs = [*itertools.combinations(range(4), 2)]
    expected = [(x[:, i] @ layer.weight[matrix(i, p)]) * x[:, j] for p, (i, j) in enumerate(pairs)]
    torch.testing.assert_close(layer(x), torch.stack(expected, dim=1))


def test_attention_is_a_mixture_of_values():
    torch.manual_seed(0)
    layer, x = FieldAttention(6, 2, 3, layer_norm=False), torch.randn(5, 4, 6)
    assert layer.residual is None
    with torch.no_grad():
        layer.project.weight[:12] = 0  # equal scores: every field gets the mean of the values
    values = (x @ layer.project.weight[12:].T).mean(1, keepdim=True)
    torch.testing.assert_close(layer(x), torch.relu(values + x))
    normed = FieldAttention(2, 2, 3, layer_norm=True)
    assert normed.residual.weight.shape == (6, 2)
    assert normed(x[..., :2]).shape == (5, 4, 6)
