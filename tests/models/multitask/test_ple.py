"""PLE: which expert may reach which label."""

import torch

from satrap.models import PLE
from tests.models.helpers import make_batch, make_schema


def test_a_label_does_not_train_the_experts_of_another_in_the_last_level():
    torch.manual_seed(0)
    schema = make_schema(labels=("a", "b"))
    model = PLE(schema, levels=2, expert_hidden=[8], hidden=[4])
    model(make_batch(model, schema, size=32))[:, 0].sum().backward()
    trained = {
        (level, stream): any(p.grad is not None and p.grad.abs().sum() > 0 for p in experts.parameters())
        for level, each in enumerate(model.levels)
        for stream, experts in enumerate(each.experts)
    }
    # The first level's experts of label b reach label a through the shared stream, as in the paper.
    assert trained == {(0, 0): True, (0, 1): True, (0, 2): True, (1, 0): True, (1, 1): False, (1, 2): True}


def test_the_last_level_has_no_shared_gate():
    model = PLE(make_schema(labels=("a", "b")), levels=3)
    assert [level.shared is not None for level in model.levels] == [True, True, False]
