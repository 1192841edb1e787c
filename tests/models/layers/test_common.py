"""Initial weights and layer order of the shared MLP; the cross layer; Wide & Deep, all of shared parts."""

import math

import pytest
import torch
from torch import nn

from satrap.models import WideDeep, create
from satrap.models.layers.common import CrossLayer, mlp
from satrap.models.layers.linear import Linear
from satrap.schema import Label, Schema
from tests.models.helpers import make_batch, make_schema


def test_mlp_layers_and_initial_weights():
    torch.manual_seed(0)
    network, width = mlp(300, [200, 100], dropout=0.1, batch_norm=True)
    assert width == 100
    assert [type(layer) for layer in network] == [Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout] * 2
    bound = math.sqrt(6 / (300 + 200))
    assert 0.99 * bound < network[0].weight.abs().max() <= bound
    assert (network[0].bias == 0).all()


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


@pytest.mark.parametrize("name", ["dnn", "dcnv2", "dlrm", "wukong", "rankmixer", "mmoe", "ple"])
def test_a_model_starts_at_the_means_that_are_known(name: str) -> None:
    torch.manual_seed(0)
    features = make_schema().features
    labels = [Label(name="a", mean=0.003), Label(name="b"), Label(name="c", mean=0.75)]
    schema = Schema(labels, features)
    model = create(name, schema)
    found = torch.sigmoid(model(make_batch(model, schema)))
    torch.testing.assert_close(found[:, 0], torch.full((6,), 0.003))
    torch.testing.assert_close(found[:, 2], torch.full((6,), 0.75))
    assert found[:, 1].std() > 1e-4


@pytest.mark.parametrize("name", ["dnn", "dcnv2", "lr"])
def test_a_model_of_a_number_starts_at_its_mean_if_asked_to(name: str) -> None:
    torch.manual_seed(0)
    found = []
    for start in (True, None):
        label = Label(name="y", kind="regression", mean=7.0, std=2.0, start_at_mean=start)
        schema = Schema([label], make_schema().features)
        model = create(name, schema)
        batch = make_batch(model, schema)
        if name == "lr":
            for rows in batch.embeddings.values():
                rows.data.zero_()
        found.append(model(batch))
    torch.testing.assert_close(found[0], torch.zeros(6, 1))  # the output of a mean, see Label
    assert name == "lr" or found[1].std() > 1e-4


def test_first_order_models_start_at_the_mean_and_their_rows() -> None:
    for name in ("lr", "fm", "deepfm", "wide_deep"):
        schema = Schema([Label(name="y", mean=0.2)], make_schema().features)
        model = create(name, schema)
        batch = make_batch(model, schema)
        for rows in batch.embeddings.values():
            rows.data.zero_()
        if name in ("fm", "deepfm"):
            model.second.vectors.data.zero_()
        torch.testing.assert_close(torch.sigmoid(model(batch)), torch.full((6, 1), 0.2))


def test_wide_deep_equals_its_formula():
    torch.manual_seed(0)
    for labels in (("y",), ("a", "b")):
        schema = make_schema(dims=(4, 2, 7), labels=labels)
        model = WideDeep(schema, hidden=[5])
        nn.init.normal_(model.wide.weight)
        nn.init.normal_(model.wide.bias)
        batch = make_batch(model, schema)
        rows, count = batch.embeddings.values(), len(labels)
        wide = sum(r[:, -count:] for r in rows) + batch.numeric @ model.wide.weight + model.wide.bias
        inputs = torch.cat([*(r[:, :-count] for r in rows), batch.numeric], dim=1)
        deep = torch.relu(model.deep[0](inputs)) @ model.head.weight.T
        torch.testing.assert_close(model(batch), wide + deep)
