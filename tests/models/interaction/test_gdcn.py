"""A GDCN is a DCN-V2 with gates; `tests/models/test_plain.py` compares it with its formula."""

import torch

from satrap.models import GDCN, DCNv2
from tests.models.helpers import make_batch, make_schema


def test_open_gates_make_it_dcnv2():
    torch.manual_seed(0)
    schema = make_schema()
    for structure in ("parallel", "stacked"):
        gated, plain = (kind(schema, hidden=[5], structure=structure, rank=4) for kind in (GDCN, DCNv2))
        weights = {k: v for k, v in gated.state_dict().items() if ".gate." not in k}
        plain.load_state_dict(weights)
        with torch.no_grad():
            for layer in gated.cross:
                layer.gate[1].weight.zero_()  # sigmoid(0) is a half
                layer.project[1].weight.mul_(2)
                layer.project[1].bias.mul_(2)
        batch = make_batch(plain, schema)
        torch.testing.assert_close(gated(batch), plain(batch))


def test_a_gate_has_the_shape_of_its_matrix():
    for rank in (None, 3):
        layer = GDCN(make_schema(), rank=rank).cross[0]
        shapes = [
            [tuple(w.shape) for w in part.parameters() if w.ndim == 2] for part in (layer.project, layer.gate)
        ]
        assert shapes[0] == shapes[1]
        assert [name for name, _ in layer.gate.named_parameters() if name.endswith("bias")] == []
    assert all(layer.gate is None for layer in DCNv2(make_schema()).cross)
