"""All pairs of vectors against their formula, forward and backward."""

import sys

import torch

from satrap.models.layers.interaction import DotInteraction
from tests.models.plain import explicit_pairs


def test_dot_interaction_is_every_pair_once():
    vectors = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    interaction = DotInteraction(6)
    torch.testing.assert_close(interaction(vectors), explicit_pairs(vectors))
    assert torch.autograd.gradcheck(interaction, vectors)
    assert torch.autograd.gradgradcheck(interaction, vectors)


def test_in_16_bits_gradients_are_those_of_autograd():
    vectors = torch.randn(50, 6, 8, requires_grad=True)
    weights = torch.randn(50, 15)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = DotInteraction(6)(vectors)
    assert short.dtype == torch.bfloat16
    found, expected = (
        torch.autograd.grad((products.float() * weights).sum(), vectors)[0]
        for products in (short, explicit_pairs(vectors))
    )
    assert found.dtype == torch.float32
    assert 0 < (found - expected).norm() < 2**-7 * expected.norm()


def test_positions_are_not_in_the_state_dict_but_move_with_the_module():
    interaction = DotInteraction(6)
    assert not interaction.state_dict()
    assert {buffer.device.type for buffer in interaction.to("meta").buffers()} == {"meta"}


def test_a_first_vector_is_one_more_field_and_precedes_the_products(monkeypatch):
    monkeypatch.setitem(sys.modules, "satrap.models.kernels.dot_interaction", None)  # not for a CPU
    vectors = torch.randn(5, 6, 16)
    first, others = vectors[:, 0], vectors[:, 1:]
    interaction = DotInteraction(6)
    expected = torch.cat([first, interaction(vectors)], dim=1)
    assert torch.equal(interaction(others, first), expected)
    assert interaction(others.double(), first).dtype == torch.float32
