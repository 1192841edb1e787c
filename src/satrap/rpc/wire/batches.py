"""Batches as message parts: a text that describes them, then at most ten raw arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Jagged, exact
from satrap.rpc.wire.frames import Buffer, FrameError, as_bytes
from satrap.rpc.wire.text import pack_text

DENSE = {"numeric": "<f4", "labels": "<f4", "label_mask": "|b1", "weights": "<f4", "groups": "<u8"}
"""Arrays with one row per sample, and their types."""

Plain = dict[str, Any]
_NOTHING: npt.NDArray[np.float32] = np.empty(0, np.float32)
_NO_OFFSETS: npt.NDArray[np.int64] = np.empty(0, np.int64)


def pack_batch(batch: Batch, about: Plain) -> list[Buffer]:
    """Return the parts for a batch; only the ids are copied, into one array.

    `about` is more plain data for the text, with other keys than "size", "ids", "dense", "position".
    """
    jagged, events = batch.ids.values(), batch.events.values()
    dense = {name: getattr(batch, name) for name in DENSE}
    text = {
        **about,
        "size": batch.size,
        "ids": _described(batch.ids),
        "events": _described(batch.events),
        "dense": {k: [1, *a.shape[1:]] for k, a in dense.items() if a is not None},
        "exact": exact(batch.labels),
        "position": batch.position,
    }
    kinds = _dense(text["exact"])
    arrays: list[npt.NDArray[Any]] = [
        _joined([j.values for j in jagged], "<u8"),
        _joined([j.offsets for j in jagged if j.offsets is not None], "<i8"),
        _joined([j.weights for j in jagged if j.weights is not None], "<f4"),
        *(np.ascontiguousarray(a, kinds[name]) for name, a in dense.items() if a is not None),
    ]
    if events:
        arrays.append(_joined([j.values for j in events], "<f4"))
        arrays.append(_joined([j.offsets for j in events if j.offsets is not None], "<i8"))
    return [pack_text(text), *(a.reshape(-1).view(np.uint8) for a in arrays)]


def _dense(exact: bool) -> dict[str, str]:
    """Return the types of `DENSE`, in which labels may be float64."""
    return {**DENSE, "labels": "<f8"} if exact else DENSE


def _described(features: Mapping[str, Jagged]) -> list[list[Any]]:
    return [
        [name, len(j.values), j.offsets is not None, j.weights is not None] for name, j in features.items()
    ]


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: str) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def unpack_batch(text: Plain, parts: Sequence[Buffer]) -> Batch:
    """Return a batch from its text and the other parts, as views of the parts that are aligned.

    Raises:
        FrameError: names, types or sizes do not fit.
        DataError: offsets do not ascend.
    """
    try:
        size, features = int(text["size"]), list(text["ids"])
        numbers = list(text["events"])
        kinds = [
            "<u8",
            "<i8",
            "<f4",
            *(_dense(text["exact"])[name] for name in text["dense"]),
            *["<f4", "<i8"] * bool(numbers),
        ]
        arrays = [_view(part, kind) for part, kind in zip(parts, kinds, strict=True)]
        ids = _features(size, features, *arrays[:3])
        shapes = [[size, *map(int, shape[1:])] for shape in text["dense"].values()]
        dense = {
            name: array.reshape(shape)
            for name, array, shape in zip(text["dense"], arrays[3 : 3 + len(shapes)], shapes, strict=True)
        }
        values, offsets = arrays[3 + len(shapes) :] if numbers else (_NOTHING, _NO_OFFSETS)
        events = _features(size, numbers, values, offsets, _NOTHING)
        return Batch(size, ids, **dense, position=text["position"], events=events)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise FrameError(f"a batch does not fit its description: {error}") from error


def _view(part: Buffer, dtype: str) -> npt.NDArray[Any]:
    data = as_bytes(part)
    if data.ctypes.data % np.dtype(dtype).itemsize:
        data = data.copy()
    return data.view(dtype)


def _features(
    size: int,
    features: Sequence[Sequence[Any]],
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32],
) -> dict[str, Jagged]:
    ids: dict[str, Jagged] = {}
    at = at_offsets = at_weights = 0
    for name, count, jagged, weighted in features:
        bounds = offsets[at_offsets : at_offsets + size + 1] if jagged else None
        row_weights = weights[at_weights : at_weights + count] if weighted else None
        ids[name] = Jagged(values[at : at + count], bounds, row_weights)
        at, at_offsets = at + count, at_offsets + (size + 1) * bool(jagged)
        at_weights += count * bool(weighted)
    if (at, at_offsets, at_weights) != (len(values), len(offsets), len(weights)):
        raise ValueError("the arrays are longer than described")
    return ids
