"""Batches of samples: as readers yield them (NumPy, ids) and as models receive them (tensors, embeddings)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.runtime.arguments import checked
from satrap.runtime.formatting import described

Ids = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@checked()
@dataclass(slots=True)
class Jagged:
    """One feature's ids, or one number per event, for all samples of a batch.

    Sample `i` owns `values[offsets[i]:offsets[i + 1]]`; `offsets` is None if every sample has exactly one.

    Args:
        values: uint64[n] ids, or float32[n] numbers.
        offsets: int64[batch + 1], ascending from 0 to n, or None.
        weights: float32[n], one per id, or None for all ones.

    Raises:
        DataError: shapes or dtypes do not fit.
    """

    values: npt.NDArray[Any]
    offsets: Offsets | None = None
    weights: Floats | None = None

    def __repr__(self) -> str:
        return described(self)

    def __post_init__(self) -> None:
        if self.values.dtype not in (np.uint64, np.float32) or self.values.ndim != 1:
            actual = f"{self.values.dtype}{list(self.values.shape)}"
            raise DataError(f"values must be ids, uint64[n], or numbers, float32[n], got {actual}")
        offsets, count = self.offsets, len(self.values)
        if offsets is not None:
            if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 1:
                raise DataError(f"offsets must be int64[batch + 1], got {offsets.dtype}{list(offsets.shape)}")
            if offsets[0] != 0 or offsets[-1] != count or np.any(np.diff(offsets) < 0):
                raise DataError(f"offsets must ascend from 0 to the number of ids ({count})")
        if self.weights is not None and self.weights.shape != self.values.shape:
            raise DataError(f"{count} ids but weights of shape {list(self.weights.shape)}")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def single(self) -> bool:
        """Whether every sample has exactly one id, without a weight."""
        return self.offsets is None and self.weights is None


@checked()
@dataclass(slots=True)
class Batch:
    """Samples as a reader yields them, on the host.

    Args:
        size: number of samples.
        ids: categorical feature -> `Jagged`, each of `size` samples.
        numeric: float32[size, `Schema.numeric_width`], see `Schema.numeric_columns`; None without any.
        labels: float32[size, number of labels], or None for prediction: 0 or 1, the value of a regression
            label, or the class index of a multiclass label. Readers use float64 if a label is a number.
        label_mask: bool[size, number of labels], False where a label is unknown; None when all are known.
        weights: float32[size] sample weights >= 0, or None.
        groups: uint64[size] group ids for grouped AUC, or None.
        position: the reader's position just after this batch (plain JSON data), or None.
        events: numeric feature of a sequence -> one float32 number per event, with the same offsets as the
            sequence's ids.
        times: float64[size] event times in a stream, seconds since 1970, NaN where missing; or None.
        candidates: items that all samples are compared with in addition to their own, with the features of an
            item only; None: the model predicts labels, and compares no vectors.
    """

    size: int
    ids: Mapping[str, Jagged]
    numeric: Floats | None = None
    labels: Floats | npt.NDArray[np.float64] | None = None
    label_mask: npt.NDArray[np.bool_] | None = None
    weights: Floats | None = None
    groups: Ids | None = None
    position: Any = None
    events: Mapping[str, Jagged] = field(default_factory=dict)
    times: npt.NDArray[np.float64] | None = None
    candidates: Batch | None = None

    def __repr__(self) -> str:
        return described(self)

    def __post_init__(self) -> None:
        for kind, features in ((np.uint64, self.ids), (np.float32, self.events)):
            for name, jagged in features.items():
                if len(jagged) != self.size:
                    raise DataError(f"feature {name!r} has {len(jagged)} samples, the batch has {self.size}")
                if jagged.values.dtype != kind:
                    raise DataError(f"feature {name!r} has values of type {jagged.values.dtype}")
        for name in ("numeric", "labels", "label_mask", "weights", "groups", "times"):
            array = getattr(self, name)
            if array is not None and len(array) != self.size:
                raise DataError(f"{name} has {len(array)} samples, the batch has {self.size}")


def one_id_each(values: Ids) -> Jagged:
    """Return ids uint64[n] of n samples with one id each; unchecked, to save time."""
    made: Jagged = object.__new__(Jagged)
    made.values, made.offsets, made.weights = values, None, None
    return made


def repeated(offsets: Offsets | None, counts: Offsets) -> tuple[Offsets, Offsets | None]:
    """Return the positions of the values after each sample has been repeated.

    Args:
        offsets: of the samples, see `Jagged`.
        counts: int64[samples], the repetitions of each sample.

    Returns:
        int64[values], the position of each new value in the old values; the new offsets, None if `offsets`
        is None.
    """
    samples = np.repeat(np.arange(len(counts)), counts)
    if offsets is None:
        return samples, None
    lengths = np.diff(offsets)[samples]
    ends = np.append(0, np.cumsum(lengths))
    return np.arange(ends[-1]) + np.repeat(offsets[:-1][samples] - ends[:-1], lengths), ends


@dataclass(slots=True)
class Runs:
    """Samples in runs, such as the items of several requests; values shared by a run are stored once.

    Args:
        order: the names of the categorical features.
        counts: int64[runs], the number of consecutive samples in each run.
        own: categorical feature -> `Jagged` of all samples.
        shared: the other categorical features -> `Jagged` with one sample per run.
        numeric: of all samples, see `Batch`.
        shared_numbers: bool[`Schema.numeric_width`], the columns of `numeric` that are equal within a run.
        events: of all samples, see `Batch`.
    """

    order: Sequence[str]
    counts: Offsets
    own: Mapping[str, Jagged]
    shared: Mapping[str, Jagged]
    numeric: Floats | None
    shared_numbers: npt.NDArray[np.bool_]
    events: Mapping[str, Jagged] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    def expanded(self) -> Batch:
        """Return the samples as a batch; shared ids are repeated on first access."""
        made: Batch = object.__new__(Batch)  # unchecked, as in `one_id_each`
        made.size, made.ids, made.numeric, made.events = self.size, _Expanded(self), self.numeric, self.events
        made.labels = made.label_mask = made.weights = made.groups = made.position = made.times = None
        made.candidates = None
        return made


class _Expanded(Mapping[str, Jagged]):
    """Categorical feature -> the ids of all samples in some runs, repeated on first access."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._made = runs, dict(runs.own)

    def __getitem__(self, feature: str) -> Jagged:
        if feature not in self._made:
            per_run = self._runs.shared[feature]
            places, offsets = repeated(per_run.offsets, self._runs.counts)
            jagged = one_id_each(per_run.values[places])
            jagged.offsets = offsets
            jagged.weights = None if per_run.weights is None else per_run.weights[places]
            self._made[feature] = jagged
        return self._made[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs.order)

    def __len__(self) -> int:
        return len(self._runs.order)


@dataclass(frozen=True, slots=True)
class Shared:
    """Columns of a network's input that are equal within runs of samples: products are computed once a run.

    Args:
        columns: bool[columns], True for a column that is equal within each run.
        runs: float32[runs, shared columns].
        run: int64[size], the run of each sample.
        own: float32[size, other columns], contiguous.
    """

    columns: npt.NDArray[np.bool_]
    runs: Tensor
    run: Tensor
    own: Tensor


_SHARED = "satrap_shared_columns"
"""Tensor attribute: the `Shared` of its columns, and the tensor's version at that time."""


def with_shared(values: Tensor, shared: Shared) -> Tensor:
    """Return values float32[size, columns] with `shared` attached, so that `shared_of` returns it."""
    setattr(values, _SHARED, (shared, values._version))
    return values


def shared_of(values: Tensor) -> Shared | None:
    """Return the `Shared` that `with_shared` attached to a tensor; None if the tensor has changed since."""
    attached = getattr(values, _SHARED, None)
    return attached[0] if attached is not None and attached[1] == values._version else None


def exact(labels: npt.NDArray[Any] | None) -> bool:
    """Return whether labels are float64."""
    return labels is not None and labels.dtype == np.float64


@dataclass(slots=True)
class JaggedRows:
    """Embeddings of a feature with pooling "none": one row per id, in the order of the ids.

    Also holds a numeric feature of a sequence: one number per event, `dim` is 1.

    Args:
        values: float32[n, dim].
        offsets: int64[batch + 1]; sample `i` owns `values[offsets[i]:offsets[i + 1]]`. All features of a
            sequence have the same offsets.
        on_host: the offsets as a host array, if available without a device copy.
    """

    values: Tensor
    offsets: Tensor
    on_host: Offsets | None = None

    def bounds(self) -> Offsets:
        """Return the offsets on the host."""
        return self.offsets.cpu().numpy() if self.on_host is None else self.on_host

    def samples(self, start: int, stop: int) -> JaggedRows:
        """Return the samples start..stop; values are a view."""
        bounds = self.bounds()[start : stop + 1]
        offsets = self.offsets[start : stop + 1]
        return JaggedRows(self.values[bounds[0] : bounds[-1]], offsets - offsets[0], bounds - bounds[0])

    def padded(self, length: int) -> tuple[Tensor, Tensor]:
        """Return (float32[batch, length, dim] padded with zeros, bool[batch, length] True where real).

        Longer lists keep their first `length` rows.
        """
        counts = self.offsets.diff()
        position = torch.arange(length, device=self.values.device)
        mask = position < counts.unsqueeze(1)
        index = (self.offsets[:-1].unsqueeze(1) + position).clamp(max=max(len(self.values) - 1, 0))
        if len(self.values) == 0:
            return self.values.new_zeros(len(counts), length, self.values.shape[1]), mask
        return self.values[index] * mask.unsqueeze(-1), mask


@dataclass(slots=True)
class EmbeddedBatch:
    """The input of `model.forward`: embeddings and numbers as tensors on the model's device.

    `batch["user"]` is the pooled embedding of feature "user", float32[size, dim] (or `JaggedRows` for
    pooling "none"). `batch.stack()` and `batch.flat()` return the two shapes that most networks start from.

    Args:
        size: number of samples.
        embeddings: feature -> pooled rows.
        numeric: float32[size, `Schema.numeric_width`], possibly of zero columns; a vector feature is
            `numeric[:, schema.numeric_columns[name]]`.
        blocks: tensors float32[size, features, dim] with the names of their features; `stack` returns one
            of them if it has all features.
        labels: float32[size, labels] as in `Batch.labels`, or None for prediction.
        label_mask: bool[size, labels], False where a label is unknown; None when all are known.
        weights: float32[size] sample weights, or None.
        exact_labels: float64[size, labels], if float32 may round a label's numbers; None: use `labels`.
        source: the host batch, for models that need ids or groups.
        beside: makes the result of `flat` without copying pooled features; None: `flat` concatenates.
        events: numeric feature of a sequence -> its numbers, as `JaggedRows` float32[n, 1].
        candidates: items that a model of vectors compares with each sample, with the features of an item
            only; None: the model returns logits.
    """

    size: int
    embeddings: Mapping[str, Tensor | JaggedRows]
    numeric: Tensor
    blocks: Sequence[tuple[tuple[str, ...], Tensor]] = field(default_factory=tuple)
    labels: Tensor | None = None
    label_mask: Tensor | None = None
    weights: Tensor | None = None
    exact_labels: Tensor | None = None
    source: Batch | None = None
    beside: Callable[[], Tensor] | None = None
    events: Mapping[str, JaggedRows] = field(default_factory=dict)
    candidates: EmbeddedBatch | None = None

    def __getitem__(self, feature: str) -> Tensor:
        """Return the pooled embedding of a feature, float32[size, dim]; `ConfigError` if it has none."""
        try:
            value = self.embeddings[feature]
        except KeyError as error:
            names = list(self.embeddings)
            raise ConfigError(
                f"the batch has no embedding of feature {feature!r}",
                fix=f"{did_you_mean(feature, names)}use one of {', '.join(names)}; "
                "numeric features are columns of batch.numeric",
            ) from error
        if isinstance(value, JaggedRows):
            raise TypeError(f"feature {feature!r} has pooling 'none': use batch.embeddings[{feature!r}]")
        return value

    def pooled(self) -> tuple[str, ...]:
        """Return the names of the features that have one vector per sample, in schema order."""
        return tuple(k for k, v in self.embeddings.items() if not isinstance(v, JaggedRows))

    def stack(self) -> Tensor:
        """Return float32[size, features, dim]: all pooled features, which must have the same dim."""
        names = self.pooled()
        for block_names, block in self.blocks:
            if block_names == names:
                return block
        return torch.stack([self[name] for name in names], dim=1)

    def flat(self) -> Tensor:
        """Return float32[size, sum of dims + numeric]: all pooled features concatenated, then the numbers."""
        if self.beside is not None:
            return self.beside()
        names = self.pooled()
        for block_names, block in self.blocks:
            if block_names == names:
                return torch.cat([block.flatten(1), self.numeric], dim=1)
        return torch.cat([*(self[name] for name in names), self.numeric], dim=1)
