"""The network against the same layers written out."""

import pytest
import torch

from satrap.models import DNN
from tests.models.helpers import make_batch, make_schema


@pytest.mark.parametrize("labels", [("y",), ("a", "b", "c")])
def test_it_is_an_mlp_of_rows_and_numbers_side_by_side(labels):
    torch.manual_seed(0)
    schema = make_schema(dims=(3, 5), numbers=2, labels=labels)
    model = DNN(schema, hidden=[7, 4])
    batch = make_batch(model, schema)
    values = torch.cat([*batch.embeddings.values(), batch.numeric], 1)
    layers = [module for module in model.deep.modules() if isinstance(module, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(10, 7), (7, 4)]
    for layer in layers:
        values = torch.relu(values @ layer.weight.T + layer.bias)
    expected = values @ model.head.weight.T + model.head.bias
    assert expected.shape == (6, len(labels))
    torch.testing.assert_close(model(batch), expected)


def test_widths_dropout_and_norm_are_those_asked_for():
    schema = make_schema()
    plain, other = DNN(schema), DNN(schema, dropout=0.25, batch_norm=True)
    kinds = {type(module).__name__ for module in plain.modules()}
    assert not kinds & {"Dropout", "BatchNorm1d"}
    assert [m.out_features for m in plain.modules() if isinstance(m, torch.nn.Linear)] == [256, 128, 1]
    assert {m.p for m in other.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}
    assert [m.num_features for m in other.modules() if isinstance(m, torch.nn.BatchNorm1d)] == [256, 128]
