"""Transformer blocks against PyTorch's, and sequences padded in groups of similar length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from satrap.errors import ConfigError
from satrap.models.layers.transformer import LONGER, TransformerBlock, from_the_end, groups_by_length, padded
from tests.models.layers.plain import plain


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_is_pytorchs(causal: bool) -> None:
    torch.manual_seed(0)
    block, x = TransformerBlock(8, 2, 12, 0.0), torch.randn(3, 5, 8)
    hidden = torch.arange(5) >= torch.tensor([[5], [3], [1]])
    layer = plain(block)
    layer.train()  # PyTorch's fast path for evaluation fills padding with zeros
    mask = torch.ones(5, 5).triu(1).bool() if causal else None
    expected: Tensor = layer(x, src_mask=mask, src_key_padding_mask=None if causal else hidden)
    torch.testing.assert_close(block(x, None if causal else hidden), expected)


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"hidden": 0}, {"width": 0}])
def test_bad_sizes_are_errors(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        TransformerBlock(**{"width": 8, "heads": 2, "hidden": 4, **wrong}, dropout=0.0)


@given(st.lists(st.integers(0, 60), max_size=40))
def test_groups_have_every_sequence_once_and_little_padding(lengths: list[int]) -> None:
    counts = np.array(lengths, np.int64)
    groups = list(groups_by_length(counts))
    assert sorted(n for group in groups for n in group) == list(np.flatnonzero(counts))
    for group in groups:
        assert counts[group].max() <= max(counts[group].min() + 4, LONGER * counts[group].min())


def test_padding_and_places() -> None:
    rows, lengths = torch.arange(6.0)[:, None], np.array([2, 3])
    x, beyond = padded(rows, np.array([0, 3]), lengths)
    assert x[..., 0][~beyond].tolist() == [0, 1, 3, 4, 5]
    assert beyond.tolist() == [[False, False, True], [False, False, False]]
    assert from_the_end(lengths, torch.device("cpu")).tolist() == [[1, 0, 0], [2, 1, 0]]
