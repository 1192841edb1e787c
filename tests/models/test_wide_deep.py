"""Wide & Deep against its definition: a linear model plus an MLP over the vectors."""

import pytest
import torch

from satrap.errors import ConfigError
from satrap.models import WideDeep
from tests.models.helpers import make_batch, make_schema


@pytest.mark.parametrize("labels", [("y",), ("a", "b")])
@pytest.mark.parametrize("numbers", [0, 2])
def test_it_is_a_linear_model_plus_an_mlp(labels, numbers):
    torch.manual_seed(0)
    schema = make_schema(dims=(3, 5), numbers=numbers, labels=labels)
    model = WideDeep(schema, hidden=[7])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    assert model.embedding_dims == {"c0": 3 + len(labels), "c1": 5 + len(labels)}
    batch = make_batch(model, schema)
    one, two = batch.embeddings.values()
    wide = one[:, 3:] + two[:, 5:] + model.wide.bias
    if numbers:
        wide = wide + batch.numeric @ model.wide.weight
    [hidden] = [module for module in model.deep.modules() if isinstance(module, torch.nn.Linear)]
    inputs = torch.cat([one[:, :3], two[:, :5], batch.numeric], 1)
    deep = torch.relu(inputs @ hidden.weight.T + hidden.bias) @ model.head.weight.T
    torch.testing.assert_close(model(batch), wide + deep, rtol=1e-4, atol=1e-4)
    assert model.head.bias is None


def test_without_ids_there_is_nothing_to_memorise():
    with pytest.raises(ConfigError, match="WideDeep"):
        WideDeep(make_schema(dims=()))
