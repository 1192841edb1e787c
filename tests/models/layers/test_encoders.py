"""Encoders of sequences of different lengths equal plain PyTorch, one sequence at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from satrap.batch import JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.encoders import GRUEncoder, TransformerEncoder, after

LENGTHS = [3, 0, 5, 1, 5, 2, 0]


def ragged(width: int, lengths: list[int]) -> JaggedRows:
    values = torch.randn(sum(lengths), width, dtype=torch.float64).requires_grad_()
    return JaggedRows(values, torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64))


def encoder(causal: bool, *, norm_first: bool = True) -> TransformerEncoder:
    torch.manual_seed(0)
    made = TransformerEncoder(8, 5, causal=causal, norm_first=norm_first).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def alone(encoder: TransformerEncoder, x: Tensor) -> Tensor:
    """PyTorch's own layers, with the same weights."""
    x = (x + encoder.positions[: len(x)].flip(0))[None]
    mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool() if encoder.causal else None
    for block in encoder.blocks:
        layer = nn.TransformerEncoderLayer(
            8, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=block.norm_first
        ).double()
        parts = [block.project, block.out, block.up, block.down, block.norm, block.last_norm]
        weights = [weight for part in parts for weight in part.parameters()]
        names = [name for name, _ in layer.named_parameters()]
        x = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), x, {"src_mask": mask})
    outputs: Tensor = encoder.norm(x[0])
    return outputs


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_equals_a_loop_over_sequences(causal: bool, norm_first: bool) -> None:
    made, events = encoder(causal, norm_first=norm_first), ragged(8, LENGTHS)
    found = made(events)
    expected = torch.cat([alone(made, part) for part in events.values.split(LENGTHS) if len(part)])
    torch.testing.assert_close(found, expected)
    tensors, upstream = [events.values, *made.parameters()], torch.randn_like(found)
    mine, theirs = (torch.autograd.grad(y, tensors, upstream) for y in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_only_the_last_events(causal: bool) -> None:
    made, events = encoder(causal), ragged(8, [3, 1, 5])
    torch.testing.assert_close(made(events, last=True), made(events)[[2, 3, 8]])


def test_only_a_causal_encoder_hides_later_events() -> None:
    for causal in (False, True):
        made, events = encoder(causal), ragged(8, [4])
        [gradient] = torch.autograd.grad(made(events)[1].sum(), [events.values])
        assert (gradient.abs().sum(1) > 0).tolist() == [True, True, not causal, not causal]


def test_a_stack_of_grus_equals_pytorch() -> None:
    torch.manual_seed(0)
    made, events = GRUEncoder(4, 3, layers=2).double(), ragged(4, LENGTHS)
    other = nn.GRU(4, 3, 2).double()
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).repeat_interleave(3)
    weights = [
        weight
        for layer in made.layers
        for weight in (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)
    ]
    with torch.no_grad():
        for mine, theirs in zip(weights, other.parameters(), strict=True):
            theirs.copy_(mine * (sign if mine.ndim == 1 else sign.unsqueeze(1)))
        expected = torch.cat([other(part)[0] for part in events.values.split(LENGTHS) if len(part)])
        torch.testing.assert_close(made(events), expected)


def test_no_events_give_nothing() -> None:
    for lengths in ([], [0, 0]):
        assert encoder(True)(ragged(8, lengths)).shape == (0, 8)
        assert GRUEncoder(8, 3).double()(ragged(8, lengths)).shape == (0, 3)


def test_positions_count_from_the_end() -> None:
    assert after(np.array([0, 3, 3, 5])).tolist() == [2, 1, 0, 1, 0]


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="width 9 must be a multiple of heads 2"):
        TransformerEncoder(9, 5, causal=True)
    with pytest.raises(ConfigError, match="layers must be a whole number"):
        GRUEncoder(4, 3, layers=0)
