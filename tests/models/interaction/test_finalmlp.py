"""The bilinear fusion against explicit sums, and the gates."""

import torch

from satrap.models import FinalMLP
from tests.models.helpers import make_batch, make_schema


def test_fusion_equals_explicit_sums():
    torch.manual_seed(0)
    labels, heads, a, b = 2, 3, 2, 4
    schema = make_schema(labels=("p", "q"))
    model = FinalMLP(schema, hidden=[heads * a], hidden2=[heads * b], heads=heads)
    batch = make_batch(model, schema)
    out1, out2 = model.deep1(batch.flat()), model.deep2(batch.flat())
    expected = model.linear(torch.cat([out1, out2], dim=1)).clone()
    weight = model.fusion.view(heads, a, labels, b)
    for label in range(labels):
        for head in range(heads):
            left, right = out1[:, head * a : (head + 1) * a], out2[:, head * b : (head + 1) * b]
            expected[:, label] += torch.einsum("bi,ij,bj->b", left, weight[head, :, label], right)
    torch.testing.assert_close(model(batch), expected)


def test_gates_start_near_one_and_follow_only_their_context():
    torch.manual_seed(0)
    schema = make_schema()
    model = FinalMLP(schema, context1=["c0"])
    batch, other = make_batch(model, schema, seed=0), make_batch(model, schema, seed=1)
    assert torch.equal(model.gates[1](batch), torch.ones(3 * 8 + 2))
    gate = model.gates[0](batch)
    assert gate.shape == (6, 3 * 8 + 2)
    assert ((gate > 0) & (gate < 2)).all()
    assert not torch.equal(gate, model.gates[0](other))
    same_context = {**other.embeddings, "c0": batch.embeddings["c0"]}
    other.embeddings = same_context
    assert torch.equal(gate, model.gates[0](other))
    assert len(FinalMLP(schema).gates) == 0
