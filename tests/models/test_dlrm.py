"""The dot interaction against explicit pairs, and the networks around it."""

import torch

from satrap.models import DLRM
from satrap.models.dlrm import dot_interaction
from tests.models.helpers import make_batch, make_schema


def explicit_pairs(vectors):
    return torch.stack(
        [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(vectors.shape[1]) for j in range(i)], dim=1
    )


def test_dot_interaction_is_every_pair_once():
    vectors = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    row, column = torch.tril_indices(6, 6, -1)
    torch.testing.assert_close(dot_interaction(vectors, row * 6 + column), explicit_pairs(vectors))
    assert torch.autograd.gradcheck(dot_interaction, (vectors, row * 6 + column))


def test_model_equals_its_formula():
    torch.manual_seed(0)
    schema = make_schema()
    model = DLRM(schema, hidden=[9], bottom=[4])
    batch = make_batch(model, schema)
    dense = torch.relu(model.bottom[2](torch.relu(model.bottom[0](batch.numeric))))
    pairs = explicit_pairs(torch.stack([dense, *batch.embeddings.values()], dim=1))
    top = torch.relu(model.top[0](torch.cat([dense, pairs], dim=1)))
    torch.testing.assert_close(model(batch), model.head(top))


def test_positions_are_not_in_the_state_dict_but_move_with_the_module():
    model = DLRM(make_schema())
    assert "lower" not in model.state_dict()
    assert model.to("meta").lower.device.type == "meta"
