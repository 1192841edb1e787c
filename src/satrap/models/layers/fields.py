"""The vectors of fields: brought to one width, made from numbers, and their interactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import check_categorical, check_pooled, check_whole
from satrap.models.layers.linear import XavierLinear, xavier_bound
from satrap.schema import Schema


class EqualWidth(nn.Module):
    """The vectors of all categorical features at one width: a learned matrix for each feature of another dim.

    If all dims are equal to the width, the module has no weights and returns `batch.stack()`.

    Ginart et al., "Mixed Dimension Embeddings with Application to Memory-Efficient Recommendation Systems",
    ISIT 2021.

    Args:
        schema: the features.
        model: the model's name, for errors.
        width: width of the vectors; default None, the largest dim.
        tail: number of last columns of each row that are not part of its vector; they stay as they are.

    Attributes:
        width: width of the vectors.

    Raises:
        ConfigError: no categorical feature, one with pooling "none", or an invalid width.
    """

    def __init__(self, schema: Schema, model: str, width: int | None = None, *, tail: int = 0) -> None:
        super().__init__()
        check_pooled(schema, model)
        check_categorical(schema, model)
        dims = {name: feature.dim for name, feature in schema.categorical.items()}
        self.width = max(dims.values()) if width is None else width
        check_whole("vector_width", self.width)
        self.tail = tail
        self.places = {
            name: place for place, name in enumerate(k for k, d in dims.items() if d != self.width)
        }
        self.maps = nn.ModuleList(XavierLinear(dims[name], self.width, bias=False) for name in self.places)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return float32[size, features, width + tail]."""
        if not self.places:
            return batch.stack()
        return torch.stack([self._mapped(name, batch[name]) for name in batch.pooled()], dim=1)

    def _mapped(self, name: str, rows: Tensor) -> Tensor:
        if name not in self.places:
            return rows
        project = self.maps[self.places[name]]
        if not self.tail:
            return project(rows)  # type: ignore[no-any-return]
        vectors, rest = rows[:, : -self.tail], rows[:, -self.tail :]
        return torch.cat([project(vectors), rest], dim=1)


class NumberVectors(nn.Module):
    """Appends a vector for each number: a learned vector times the number.

    Args:
        numbers: columns of `EmbeddedBatch.numeric`.
        width: width of the vectors.
    """

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(numbers, width)) if numbers else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.01)

    def forward(self, vectors: Tensor, numeric: Tensor) -> Tensor:
        """Return float32[size, fields + K, width] from [size, fields, width] and numbers [size, K]."""
        if self.weight is None:
            return vectors
        return torch.cat([vectors, numeric.unsqueeze(2) * self.weight], dim=1)


class FieldNorm(nn.Module):
    """Layer normalization of each feature's vector; numbers, and vectors of one column, stay as they are.

    Args:
        dims: dims of the categorical features.
        numbers: columns of `EmbeddedBatch.numeric`.
    """

    def __init__(self, dims: Sequence[int], numbers: int) -> None:
        super().__init__()
        self.dims, self.sizes = list(dims), [sum(dims), numbers]
        self.weight = nn.Parameter(torch.empty(sum(dims)))
        self.bias = nn.Parameter(torch.empty(sum(dims)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, flat: Tensor) -> Tensor:
        """Return float32[size, columns] from `EmbeddedBatch.flat()`, of that shape."""
        if not self.dims:
            return flat
        vectors, numbers = torch.split(flat, self.sizes, dim=1)
        if len(set(self.dims)) == 1:
            normed = _normed(torch.unflatten(vectors, 1, (len(self.dims), -1))).flatten(1)
        else:
            normed = torch.cat([_normed(piece) for piece in torch.split(vectors, self.dims, dim=1)], dim=1)
        return torch.cat([torch.addcmul(self.bias, normed, self.weight), numbers], dim=1)


def _normed(vectors: Tensor) -> Tensor:
    return vectors if vectors.shape[-1] == 1 else F.layer_norm(vectors, vectors.shape[-1:])


class FieldGate(nn.Module):
    """Vectors, and each of them times `1 + W m`, where m has one column of all fields.

    Zhu et al., "FINAL: Factorized Interaction Layer for CTR Prediction", SIGIR 2023. W starts at 0.
    """

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.mix = XavierLinear(fields, fields, gain=0.0)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return float32[size, 2 * fields, width] from float32[size, fields, width]."""
        mixed = self.mix(vectors.transpose(1, 2)).transpose(1, 2)
        return torch.cat([vectors, torch.addcmul(vectors, vectors, mixed)], dim=1)


class _NonNegative(XavierLinear):
    """A linear layer whose weights start at the absolute values of `XavierLinear`."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight.abs_()


class SqueezeExcitation(nn.Module):
    """Fields times learned weights: `x_i * a_i` with `a = relu(W2 relu(W1 z))`, z the means of all fields.

    Huang et al., "FiBiNET", RecSys 2019, section 3.2. W1 has `fields // reduction` rows, at least one. W2
    starts without negative weights: a field with no other would stay at 0 for all samples.
    """

    def __init__(self, fields: int, reduction: int) -> None:
        super().__init__()
        inner = max(1, fields // reduction)
        self.down = XavierLinear(fields, inner, bias=False)  # outside nn.Sequential: too small to be split
        self.up = _NonNegative(inner, fields, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return float32[size, fields, width] from the same shape."""
        weights = F.relu(self.up(F.relu(self.down(vectors.mean(2)))))
        return vectors * weights.unsqueeze(2)


Sharing = Literal["all", "each", "pair"]


class BilinearInteraction(nn.Module):
    """The products `(W x_i) * x_j` of all pairs i < j of fields, column by column.

    Huang et al., "FiBiNET", RecSys 2019, section 3.3.

    Args:
        fields: number of fields, at least 2.
        width: width of the vectors.
        sharing: the pairs that share a matrix W: "all", "each" (all pairs of the same i), or "pair" (none).
    """

    left: Tensor
    right: Tensor

    def __init__(self, fields: int, width: int, sharing: Sharing) -> None:
        super().__init__()
        self.fields, self.pairs = fields, fields * (fields - 1) // 2
        for name in ("left", "right"):
            self.register_buffer(name, torch.empty(self.pairs, dtype=torch.int64), persistent=False)
        count = {"all": 1, "each": fields - 1, "pair": self.pairs}[sharing]
        self.weight = nn.Parameter(torch.empty(count, width, width))
        self.by_pair = sharing == "pair"
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights and the buffers."""
        left, right = torch.triu_indices(self.fields, self.fields, 1, device="cpu")
        self.left.copy_(left)
        self.right.copy_(right)
        bound = xavier_bound(*self.weight.shape[1:])
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return float32[size, fields * (fields - 1) / 2, width] from float32[size, fields, width]."""
        first = vectors.index_select(1, self.left) if self.by_pair else vectors[:, :-1]
        weight = self.weight.expand(first.shape[1], -1, -1)
        mapped = torch.bmm(first.transpose(0, 1), weight).transpose(0, 1)
        mapped = mapped if self.by_pair else mapped.index_select(1, self.left)
        return mapped * vectors.index_select(1, self.right)


class CompressedInteraction(nn.Module):
    """CIN: layers of weighted sums of the products of a layer's vectors and the fields.

    Layer k: `x^k_h = b + sum over i, j of W_hij x^(k-1)_i * x^0_j`, where `*` multiplies column by column.
    Lian et al., "xDeepFM", KDD 2018, eq. 6, with a bias.

    Args:
        fields: number of fields.
        widths: number of vectors in each layer, at least one layer.
    """

    def __init__(self, fields: int, widths: Sequence[int]) -> None:
        super().__init__()
        inputs = [fields, *widths[:-1]]
        pairs = zip(inputs, widths, strict=True)
        self.layers = nn.ModuleList(XavierLinear(count * fields, width) for count, width in pairs)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the sums of each vector, float32[size, sum of widths], from float32[size, fields, width]."""
        fields = vectors.transpose(1, 2)
        x, sums = fields, list[Tensor]()
        for layer in self.layers:
            products = (x.unsqueeze(3) * fields.unsqueeze(2)).flatten(2)
            x = layer(products)
            sums.append(x.sum(1))
        return torch.cat(sums, dim=1)


class FieldAttention(nn.Module):
    """Self-attention over fields: `relu(heads side by side + R x)`, where a head is `softmax(Q K^T) V`.

    Song et al., "AutoInt", CIKM 2019, eq. 5 to 8: scores are not divided by the root of the width. If the
    shapes match, the input is added without R.

    Args:
        width: width of the input's vectors.
        heads: number of heads.
        head_width: width of a head.
        layer_norm: normalise before the ReLU.
    """

    def __init__(self, width: int, heads: int, head_width: int, *, layer_norm: bool) -> None:
        super().__init__()
        self.heads, self.width = heads, heads * head_width
        self.project = XavierLinear(width, 3 * self.width, bias=False)
        self.residual = XavierLinear(width, self.width, bias=False) if width != self.width else None
        self.norm = nn.LayerNorm(self.width) if layer_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, fields, heads * head_width] from float32[size, fields, width]."""
        split = torch.unflatten(self.project(x), 2, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [size, heads, fields, head_width]
        weights = torch.softmax(q @ k.transpose(2, 3), dim=3)
        attended = (weights @ v).transpose(1, 2).flatten(2)
        return F.relu(self.norm(attended + (x if self.residual is None else self.residual(x))))
