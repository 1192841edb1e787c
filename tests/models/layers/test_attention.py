"""Attention over sequences of different lengths equals a loop over samples, queries, keys and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.models.layers import attention
from satrap.models.layers.attention import (
    HSTUBlock,
    TransformerBlock,
    attend,
    layout,
    softmax_attend,
    with_last,
)
from tests.support.examples import examples

CPU = torch.device("cpu")


def loop(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, lengths: list[int], window: int, first: int = 0
) -> Tensor:
    """The formula, one number at a time; all queries."""
    found, start = [], 0
    for length in lengths:
        for i in range(length):
            total = torch.zeros_like(v[0])
            for j in (j for j in range(i + 1) if i - j < window or j < first):
                score = (q[start + i] * k[start + j]).sum(1) / q.shape[2] ** 0.5 + bias[:, i - j]
                total = total + (F.silu(score) / bias.shape[1]).unsqueeze(1) * v[start + j]
            found.append(total)
        start += length
    return torch.stack(found)


def drawn(lengths: list[int], n: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(sum(lengths), 2, 3)] * 3 + [(2, n)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=7),
    st.one_of(st.none(), st.integers(1, 14)),
    st.integers(0, 14),
    st.booleans(),
    st.sampled_from([1, 60, 1 << 18]),
)
@example([5, 9, 2], 2, 3, True, 1 << 18)
@settings(deadline=None, max_examples=examples(60))
def test_values_and_gradients_equal_a_loop(
    lengths: list[int], window: int | None, first: int, last: bool, cells: int
) -> None:
    tensors = drawn(lengths, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CELLS", cells)
        seen = layout(np.array(lengths), CPU, window=window, global_tokens=first, last=last)
        found = attend(*tensors, seen)
    expected = loop(*tensors, lengths, window or 99, first)
    if last:
        expected = expected[np.cumsum(lengths) - 1]
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine, theirs = (torch.autograd.grad(x, tensors, upstream) for x in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def softmax_loop(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], window: int, causal: bool) -> Tensor:
    """Softmax attention, one query at a time."""
    found, start = [], 0
    for length in lengths:
        for i in range(length):
            seen = [j for j in range(length) if not causal or 0 <= i - j < window]
            keys, values = k[start:][seen], v[start:][seen]
            weights = torch.softmax((keys * q[start + i]).sum(2) / q.shape[2] ** 0.5, dim=0)
            found.append((weights.unsqueeze(2) * values).sum(0))
        start += length
    return torch.stack(found)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=7),
    st.one_of(st.none(), st.integers(1, 14)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 60, 1 << 18]),
)
@settings(deadline=None, max_examples=examples(60))
def test_softmax_attention_and_its_gradients_equal_a_loop(
    lengths: list[int], window: int | None, last: bool, causal: bool, cells: int
) -> None:
    tensors = drawn(lengths, 12)[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CELLS", cells)
        seen = layout(np.array(lengths), CPU, window=window if causal else None, last=last, causal=causal)
        found = softmax_attend(*tensors, seen)
    expected = softmax_loop(*tensors, lengths, window or 99, causal)
    if last:
        expected = expected[np.cumsum(lengths) - 1]
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine, theirs = (torch.autograd.grad(x, tensors, upstream) for x in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_block_is_that_of_pytorch(norm_first: bool, causal: bool) -> None:
    torch.manual_seed(0)
    block, x, lengths = TransformerBlock(6, 2, nn.ReLU(), norm_first=norm_first), torch.randn(9, 6), [3, 6]
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    theirs = nn.TransformerEncoderLayer(6, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first)
    mine = [block.project, block.out, block.up, block.down, block.norm, block.last_norm]
    with torch.no_grad():
        for one, other in zip(
            (p for part in mine for p in part.parameters()), theirs.parameters(), strict=True
        ):
            other.copy_(one)
    mask = nn.Transformer.generate_square_subsequent_mask
    expected = torch.cat(
        [theirs(part[None], src_mask=mask(len(part)) if causal else None)[0] for part in x.split(lengths)]
    )
    every, only = (layout(np.array(lengths), CPU, last=last, causal=causal) for last in (False, True))
    torch.testing.assert_close(block(x, every), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(block(x, only), expected[[2, 8]], rtol=1e-4, atol=1e-5)


def test_distances_beyond_the_bias_have_the_last_one() -> None:
    q, k, v, bias = drawn([5], 3)
    longer = torch.cat([bias, bias[:, -1:].expand(-1, 2)], dim=1)
    expected = loop(q, k, v, longer, [5], 99) * 5 / 3
    torch.testing.assert_close(attend(q, k, v, bias, layout(np.array([5]), CPU)), expected)


def test_no_sequences_give_nothing() -> None:
    for last in (False, True):
        empty = layout(np.empty(0, np.int64), CPU, last=last)
        assert attend(*drawn([], 3), empty).shape == (0, 2, 3)


def test_a_token_sees_nothing_after_it_nor_beyond_its_window() -> None:
    torch.manual_seed(0)
    block, x = HSTUBlock(6, 2, 8), torch.randn(8, 6)
    changed = x.clone()
    changed[4] = torch.randn(6)
    for window, first, reached in ((None, 0, {4, 5, 6}), (2, 0, {4, 5}), (2, 4, {4, 5}), (2, 5, {4, 5, 6})):
        seen = layout(np.array([7, 1]), CPU, window=window, global_tokens=first)
        differs = (block(x, seen) != block(changed, seen)).any(1).tolist()
        assert {i for i, different in enumerate(differs) if different} == reached


def test_a_block_is_its_formula() -> None:
    torch.manual_seed(0)
    block, x, lengths = HSTUBlock(6, 2, 9), torch.randn(7, 6), [3, 4]
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    u, v, q, k = (part.view(7, 2, 3) for part in F.silu(block.project(block.norm(x))).split(6, dim=1))
    scaled = block.scale(loop(q, k, v, block.bias, lengths, 99).reshape(7, 6))
    expected = x + (scaled * u.reshape(7, 6)) @ block.out.weight.T + block.out.bias
    every, only = (layout(np.array(lengths), CPU, last=last) for last in (False, True))
    torch.testing.assert_close(block(x, every), expected)
    torch.testing.assert_close(block(x, only), expected[[2, 6]])


def test_one_more_token_ends_each_sequence() -> None:
    assert with_last(np.array([0, 2, 2, 3])).tolist() == [0, 1, 3, 4, 2, 5]


def test_similar_lengths_share_a_tile_and_padding_stays_small() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 500)
    tiles = layout(lengths, CPU).tiles
    padded = sum(tile.queries.numel() for tile in tiles)
    assert padded < 1.2 * lengths.sum()
    assert len(tiles) < 100


def test_with_a_window_pairs_grow_with_the_length_and_without_with_its_square() -> None:
    def pairs(length: int, window: int | None, first: int = 0) -> int:
        tiles = layout(np.array([length]), CPU, window=window, global_tokens=first).tiles
        return sum(tile.queries.numel() * tile.keys.shape[1] for tile in tiles)

    assert pairs(16_000, 100) == pytest.approx(16 * pairs(1_000, 100), rel=0.1)
    assert pairs(16_000, 100, 8) - pairs(16_000, 100) == 8 * 15_900
    assert pairs(4_000, None) == 16 * pairs(1_000, None)
