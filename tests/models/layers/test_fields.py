"""Vectors of one width against matrices applied by hand."""

import pytest
import torch

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.fields import EqualWidth
from tests.models.helpers import make_batch, make_schema


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
    with pytest.raises(ConfigError, match="width must be a whole number >= 1, got 0"):
        EqualWidth(make_schema(), "X", 0)
