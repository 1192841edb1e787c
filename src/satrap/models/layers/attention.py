"""Attention over sequences of different lengths, without padding all to the longest: HSTU's, and softmax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.errors import ConfigError
from satrap.models.layers.common import check_whole
from satrap.models.layers.linear import Linear, XavierLinear

Whole = npt.NDArray[np.int64]

SPREAD = 1.25
"""Largest ratio of the longest to the shortest piece of a tile, which bounds the cost of padding."""
CELLS = 1 << 18
"""Most query-key pairs in a tile of several pieces, so that they fit in the cache."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Pieces of sequences that are computed together, padded to the longest piece.

    Args:
        queries: int64[pieces, a], tokens of the queries.
        keys: int64[pieces, b], tokens of the keys.
        distance: int64[pieces or 1, a, b], number of tokens from a key to its query, at least 0.
        hidden: bool[pieces or 1, 1, a, b], True for keys that a query does not attend to.
    """

    queries: Tensor
    keys: Tensor
    distance: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """The tokens that each token attends to.

    Args:
        tiles: all queries; some are in two tiles with different keys.
        places: int64[1 or 2, queries], positions of each query's results in the concatenation of a row of
            zeros and the results of the tiles.
        rows: int64[queries], the token of each query; None: all tokens in order.
    """

    tiles: list[Tile]
    places: Tensor
    rows: Tensor | None


def layout(
    lengths: Whole,
    device: torch.device,
    *,
    window: int | None = None,
    global_tokens: int = 0,
    last: bool = False,
    causal: bool = True,
) -> AttentionPattern:
    """Return the layout of attention: a token attends to itself and earlier tokens of its sequence.

    Args:
        lengths: int64[sequences], tokens of each sequence, at least 1. Sequences are contiguous.
        device: device of the tensors.
        window: number of tokens that a token attends to, itself and those just before it; default: all.
        global_tokens: number of first tokens of the sequence that every token also attends to.
        last: compute only the last token of each sequence.
        causal: off: a token also attends to later tokens; without `window`.
    """
    assert causal or window is None
    ends = np.cumsum(lengths)
    sets = [_pieces(ends - lengths, ends, window, last)]
    if window is not None and global_tokens:
        sets.append(_far(ends - lengths, ends, window, global_tokens, last))
    places = np.zeros((len(sets), len(ends) if last else int(lengths.sum())), np.int64)
    tiles, done = list[Tile](), 1
    for far, pieces in enumerate(sets):
        first = np.searchsorted(ends, pieces[1], "right") if last else pieces[1]  # queries before it
        for chosen in _together(pieces[2], pieces[3]):
            start, query, count, width = (part[chosen, None] for part in pieces)
            before = int((width - count).max())
            steps = np.arange(count.max())
            real = steps < count
            places[far, (first[chosen, None] + steps)[real]] = done + np.flatnonzero(real)
            done += real.size
            if far:
                keys, reach = start + np.arange(global_tokens), (query - start)[: None if last else 1]
            else:
                keys, reach = query - before + np.arange(before + len(steps)), np.array([[before]])
            distance = (reach + steps)[..., None] - np.arange(keys.shape[1])
            if far:
                hidden = distance < (window or 0)
            else:
                beyond = distance < 0 if causal or last else (np.arange(keys.shape[1]) >= width)[:, None]
                hidden = beyond if window is None else beyond | (distance >= window)
                hidden = hidden if before == 0 else hidden | (keys < start)[:, None]
            last_token = int(ends[-1]) - 1  # padding may read any token, since its results are not used
            padded = ((query + steps).clip(0, last_token), keys.clip(0, last_token))
            arrays = (*padded, distance.clip(0), hidden[:, None])
            tiles.append(Tile(*(torch.from_numpy(part).to(device) for part in arrays)))
    rows = torch.from_numpy(ends - 1).to(device) if last else None
    return AttentionPattern(tiles, torch.from_numpy(places).to(device), rows)


def sight(window: int | None, global_tokens: int | None) -> dict[str, int]:
    """Return the arguments of `layout`; raise `ConfigError` if they are invalid."""
    limits = {"window": window, "global_tokens": global_tokens}
    arguments = {name: count for name, count in limits.items() if count is not None}
    for name, count in arguments.items():
        check_whole(name, count)
    if list(arguments) == ["global_tokens"]:
        raise ConfigError(
            "global_tokens needs window",
            why="without a window, every token attends to all tokens before it",
            fix="add window: 128, or remove global_tokens",
        )
    return arguments


def with_last(bounds: Whole) -> Whole:
    """Return the order that appends one more token, given after all others, to the end of each sequence.

    Args:
        bounds: int64[sequences + 1], bounds of the sequences without the appended tokens.
    """
    order: Whole = np.insert(np.arange(bounds[-1]), bounds[1:], bounds[-1] + np.arange(len(bounds) - 1))
    return order


def _pieces(starts: Whole, ends: Whole, window: int | None, last: bool) -> tuple[Whole, Whole, Whole, Whole]:
    """Return each piece's start of its sequence, first query, number of queries, and number of keys."""
    if last:
        keys = ends - starts
        return starts, ends - 1, np.ones_like(ends), keys if window is None else keys.clip(max=window)
    if window is None:
        return starts, starts, ends - starts, ends - starts
    counts = -(-(ends - starts) // window)
    starts, ends = np.repeat(starts, counts), np.repeat(ends, counts)
    query = starts + window * (np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts))
    count = (ends - query).clip(max=window)
    return starts, query, count, count + (query - starts).clip(max=window - 1)


def _far(
    starts: Whole, ends: Whole, window: int, global_tokens: int, last: bool
) -> tuple[Whole, Whole, Whole, Whole]:
    """Do what `_pieces` does for queries whose window lacks the first token; keys are the global tokens."""
    long = ends - starts > window
    starts, ends = starts[long], ends[long]
    query = ends - 1 if last else starts + window
    return starts, query, ends - query, np.full_like(starts, global_tokens)


def _together(queries: Whole, keys: Whole) -> Iterator[Whole]:
    """Yield the numbers of pieces of similar sizes, which need little padding."""
    order = np.lexsort((keys, queries))
    cuts, shape = [0], (0, 0)
    for number, piece in enumerate(order):
        sizes = int(queries[piece]), int(keys[piece])
        if number == cuts[-1]:
            shape = least = sizes
        widest = sizes[0], max(shape[1], sizes[1])
        far = sizes[0] > SPREAD * least[0] + 1 or widest[1] > SPREAD * least[1] + 1
        if far or (number + 1 - cuts[-1]) * widest[0] * widest[1] > CELLS:
            if number > cuts[-1]:
                cuts.append(number)
            shape = least = sizes
        else:
            shape = widest
    for start, stop in pairwise([*cuts, len(order)] if len(order) else ()):
        yield order[start:stop]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, layout: AttentionPattern) -> Tensor:
    """Return `sum over keys of silu(q k / sqrt(dim) + bias[distance]) v / n` for each query.

    The result does not depend on how pieces are tiled: it has no softmax, and n is the size of `bias`.

    Args:
        q, k, v: float[tokens, heads, dim].
        bias: float[heads, n], by distance; larger distances use the last.
        layout: the tokens that each token attends to.

    Returns:
        float[queries, heads, dim].
    """
    scale, n = q.shape[2] ** -0.5, bias.shape[1]
    parts = []
    for tile in layout.tiles:
        queries, keys, values = _taken(tile, q, k, v)
        by_distance = bias[:, tile.distance.clamp(max=n - 1)].transpose(0, 1)
        scores = queries @ keys.transpose(2, 3) * scale + by_distance
        weights = F.silu(scores).masked_fill(tile.hidden, 0.0) / n
        parts.append(weights.to(values.dtype) @ values)
    return _placed(parts, layout, v)


def softmax_attend(q: Tensor, k: Tensor, v: Tensor, layout: AttentionPattern) -> Tensor:
    """Return `sum over keys of softmax(q k / sqrt(dim)) v` for each query.

    Args:
        q, k, v: float[tokens, heads, dim].
        layout: the tokens that each token attends to, without global tokens.

    Returns:
        float[queries, heads, dim].
    """
    parts = [
        F.scaled_dot_product_attention(*_taken(tile, q, k, v), attn_mask=~tile.hidden)
        for tile in layout.tiles
    ]
    return _placed(parts, layout, v)


def _taken(tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [pieces, heads, a, dim], keys and values [pieces, heads, b, dim] of a tile."""

    def taken(x: Tensor, at: Tensor) -> Tensor:
        return torch.unflatten(x.index_select(0, at.flatten()), 0, at.shape).transpose(1, 2)

    return taken(q, tile.queries), taken(k, tile.keys), taken(v, tile.keys)


def _placed(parts: Iterable[Tensor], layout: AttentionPattern, v: Tensor) -> Tensor:
    """Return float[queries, heads, dim] from the results of the tiles, [pieces, heads, a, dim]."""
    flat = [v.new_zeros(1, *v.shape[1:]), *(part.transpose(1, 2).flatten(0, 1) for part in parts)]
    results = torch.cat(flat).index_select(0, layout.places.flatten())
    return torch.unflatten(results, 0, layout.places.shape).sum(0)


class HSTUBlock(nn.Module):
    """`x + W2 (LN(A V) * U)` with `U, V, Q, K = split(silu(W1 LN(x)))` and A as in `attend`.

    Zhai et al., "Actions Speak Louder than Words", ICML 2024, arXiv 2402.17152, eq. 1 to 3, with a bias by
    position only. Scores are divided by the square root of dim, as in the ranker of
    github.com/meta-recsys/generative-recommenders.

    Args:
        width: width of a token, a multiple of `heads`.
        heads: number of heads.
        n: number of tokens of the longest sequence.
    """

    def __init__(self, width: int, heads: int, n: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.project = XavierLinear(width, 4 * width)
        self.bias = nn.Parameter(torch.empty(heads, n))
        self.scale = nn.LayerNorm(width, eps=1e-6)
        self.out = XavierLinear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial bias; the layers set their own weights."""
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, layout: AttentionPattern) -> Tensor:
        """Return float32[queries, width] from float32[tokens, width]."""
        u, *vqk = F.silu(self.project(self.norm(x))).chunk(4, dim=1)
        v, q, k = (torch.unflatten(part, 1, (self.heads, -1)) for part in vqk)
        attended = attend(q, k, v, self.bias, layout).flatten(1)
        if layout.rows is not None:
            x, u = x.index_select(0, layout.rows), u.index_select(0, layout.rows)
        outputs: Tensor = x + self.out(self.scale(attended) * u)
        return outputs


class TransformerBlock(nn.Module):
    """`y = LN(x + W2 A(x))`, then `LN(y + W4 f(W3 y))`, with softmax attention A of several heads.

    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.1, without dropout of attention
    weights: its pattern would depend on the padding.

    Args:
        width: width of a token, a multiple of `heads`.
        heads: number of heads.
        activation: f.
        expansion: hidden columns of the second part, as a multiple of `width`.
        norm_first: normalise the inputs of both parts instead of their outputs (Xiong et al., "On Layer
            Normalization in the Transformer Architecture", ICML 2020).
        dropout: probability of zeroing an output of either part in training; default 0.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        activation: nn.Module,
        *,
        expansion: int = 4,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.project = XavierLinear(width, 3 * width)
        self.out = XavierLinear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.activation = Linear(width, expansion * width), activation
        self.down, self.last_norm = Linear(expansion * width, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, layout: AttentionPattern) -> Tensor:
        """Return float32[queries, width] from float32[tokens, width]."""
        parts = self.project(self.norm(x) if self.norm_first else x).chunk(3, dim=1)
        q, k, v = (torch.unflatten(part, 1, (self.heads, -1)) for part in parts)
        x = x if layout.rows is None else x.index_select(0, layout.rows)
        x = x + self.dropout(self.out(softmax_attend(q, k, v, layout).flatten(1)))
        x = x if self.norm_first else self.norm(x)
        fed = self.last_norm(x) if self.norm_first else x
        outputs: Tensor = x + self.dropout(self.down(self.activation(self.up(fed))))
        return outputs if self.norm_first else self.last_norm(outputs)
