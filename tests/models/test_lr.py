"""Logistic regression against its definition."""

import pytest
import torch

from satrap.errors import ConfigError
from satrap.models import LR
from satrap.schema import Categorical, Schema
from tests.models.helpers import make_batch, make_schema


@pytest.mark.parametrize("labels", [("y",), ("a", "b")])
@pytest.mark.parametrize("numbers", [0, 2])
def test_it_is_a_sum_of_weights(labels, numbers):
    torch.manual_seed(0)
    schema = make_schema(labels=labels, numbers=numbers)
    model = LR(schema)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    assert model.embedding_dims == dict.fromkeys(("c0", "c1", "c2"), len(labels))
    batch = make_batch(model, schema)
    expected = sum(batch.embeddings.values()) + model.first.bias
    if numbers:
        expected = expected + batch.numeric @ model.first.weight
    torch.testing.assert_close(model(batch), expected)


def test_numbers_alone_are_enough():
    schema = make_schema(dims=(), numbers=2, labels=("a", "b"))
    model = LR(schema)
    with torch.no_grad():
        model.first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    batch = make_batch(model, schema)
    torch.testing.assert_close(model(batch), batch.numeric @ model.first.weight + model.first.bias)


def test_a_feature_that_is_not_pooled_is_refused():
    history = Categorical(dim=4, multi=True, separator="|", pooling="none")
    with pytest.raises(ConfigError, match="history"):
        LR(Schema(["y"], {"history": history}))
