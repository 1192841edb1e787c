from __future__ import annotations

import pytest
import torch
from torch import nn

from satrap.checkpoint.dense import (
    pack_optimizer,
    pack_tensors,
    same_shapes,
    unpack_optimizer,
    unpack_tensors,
)


class Tied(nn.Module):
    """Two layers with one weight, as in a tied decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("scale", torch.ones(4, dtype=torch.bfloat16))


def test_weights_that_share_memory_come_back_equal() -> None:
    network, same = Tied(), Tied()
    found = unpack_tensors(pack_tensors(network.state_dict()))
    assert found.keys() == network.state_dict().keys()
    assert found["scale"].dtype == torch.bfloat16
    same.load_state_dict(found)
    assert same.other.weight is same.one.weight
    for a, b in zip(network.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)


def test_views_of_one_tensor_come_back_equal() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    views = {"whole": whole, "row": whole[1], "column": whole[:, 1], "empty": whole[:0]}
    found = unpack_tensors(pack_tensors(views))
    assert all(torch.equal(found[name], view) for name, view in views.items())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_the_state_of_an_optimizer_comes_back(optimizer: type[torch.optim.Optimizer]) -> None:
    network = Tied()
    one = optimizer(network.parameters(), lr=0.1)  # type: ignore[call-arg]
    network.other(network.one(torch.ones(2, 4))).sum().backward()
    one.step()
    saved = unpack_optimizer(pack_optimizer(one.state_dict()))
    assert saved["param_groups"] == one.state_dict()["param_groups"]
    for index, entry in one.state_dict()["state"].items():
        for key, value in entry.items():
            torch.testing.assert_close(saved["state"].get(index, {}).get(key), value, rtol=0, atol=0)
    assert unpack_optimizer(pack_optimizer({})) == {}


def test_the_first_difference_in_shape_is_named() -> None:
    saved = dict(Tied().state_dict())
    assert same_shapes(saved, Tied()) == ""
    saved["one.bias"] = torch.zeros(5)
    assert same_shapes(saved, Tied()) == "one.bias: saved (5,), model (4,)"
    del saved["one.bias"]
    assert same_shapes(saved, Tied()) == "one.bias: saved nothing, model (4,)"
