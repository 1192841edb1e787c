"""What an AutoInt is made of; `tests/models/test_plain.py` compares it with its formula."""

import torch

from satrap.models import AutoInt
from tests.models.helpers import make_batch, make_schema


def test_without_an_mlp_the_head_reads_the_attention_alone():
    schema = make_schema(numbers=1)
    plain, plus = AutoInt(schema, hidden=[]), AutoInt(schema, hidden=[5])
    assert plain.head.in_features == 4 * 32
    assert plus.head.in_features == 4 * 32 + 5
    plus.load_state_dict(
        {**plus.state_dict(), **{k: v for k, v in plain.state_dict().items() if k[:4] != "head"}}
    )
    with torch.no_grad():
        plus.head.weight.zero_()
        plus.head.weight[:, : 4 * 32] = plain.head.weight
    batch = make_batch(plain, schema)
    torch.testing.assert_close(plus(batch), plain(batch))


def test_attention_depends_on_no_order_of_the_fields():
    torch.manual_seed(0)
    model = AutoInt(make_schema(numbers=0), hidden=[])
    fields, order = torch.randn(5, 3, 8), torch.tensor([2, 0, 1])
    torch.testing.assert_close(model.attention(fields)[:, order], model.attention(fields[:, order]))
