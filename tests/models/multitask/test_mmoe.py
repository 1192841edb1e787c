"""MMoE against its formula."""

import torch

from satrap.models import MMoE
from tests.models.helpers import make_batch, make_schema


def test_a_label_is_a_tower_on_its_mixture_of_experts():
    torch.manual_seed(0)
    schema = make_schema(labels=("a", "b"))
    model = MMoE(schema, experts=3, expert_hidden=[5], hidden=[])
    batch = make_batch(model, schema)
    x = torch.cat([*batch.embeddings.values(), batch.numeric], dim=1)
    w = dict(model.named_parameters())
    weights, biases = w["experts.layers.0.weight"].split(5), w["experts.layers.0.bias"].split(5)
    experts = [torch.relu(x @ weights[i].T + biases[i]) for i in range(3)]
    for k in range(2):
        shares = torch.softmax(x @ w[f"gates.{k}.scores.weight"].T, dim=1)
        mixed = sum(shares[:, i : i + 1] * experts[i] for i in range(3))
        expected = mixed @ w[f"towers.towers.{k}.0.weight"].T + w[f"towers.towers.{k}.0.bias"]
        torch.testing.assert_close(model(batch)[:, k], expected[:, 0])
