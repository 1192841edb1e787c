"""What a MaskNet is made of; `tests/models/test_plain.py` compares it with its formula."""

import pytest
import torch

from satrap.models import MaskNet
from tests.models.helpers import make_batch, make_schema


@pytest.mark.parametrize(("structure", "inputs"), [("parallel", [26, 26]), ("serial", [26, 8])])
def test_blocks_read_the_input_or_each_other(structure, inputs):
    model = MaskNet(make_schema(), blocks=[8, 4], structure=structure, reduction=0.5, hidden=[5])
    assert [block.deep[0].in_features for block in model.blocks] == inputs
    assert [block.mask[0].out_features for block in model.blocks] == [
        {26: 14, 8: 4}[width] for width in inputs
    ]  # even
    assert model.deep[0].in_features == (12 if structure == "parallel" else 4)


def test_a_mask_reads_all_features():
    """Block 2 of a serial model depends on the input also where block 1 is off."""
    torch.manual_seed(0)
    schema = make_schema()
    model = MaskNet(schema, blocks=[6, 4], structure="serial")
    with torch.no_grad():
        model.blocks[0].deep[1].weight.zero_()
        model.blocks[0].deep[1].bias.fill_(1.0)
    a, b = (model(make_batch(model, schema, seed=seed)) for seed in (0, 1))
    assert (a - b).abs().min() > 0


def test_numbers_and_single_columns_are_not_normalised():
    schema = make_schema(dims=(1, 4), numbers=1)
    model = MaskNet(schema)
    batch = make_batch(model, schema)
    flat = batch.flat()
    found = model.norm(flat)
    assert torch.equal(found[:, [0, 5]], flat[:, [0, 5]])
    assert found[:, 1:5].mean(1).abs().max() < 1e-6
    torch.testing.assert_close(found[:, 1:5].var(1, correction=0), torch.ones(6), rtol=1e-3, atol=1e-3)
