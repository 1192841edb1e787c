"""Batches as message parts: a text that describes them, then named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Jagged, exact
from satrap.rpc.wire.frames import Buffer, FrameError
from satrap.rpc.wire.text import pack_arrays, unpack_arrays

DENSE = {"numeric": "<f4", "labels": "<f4", "label_mask": "|b1", "weights": "<f4", "groups": "<u8"}
"""Arrays with one row per sample, and their types; exact labels are float64."""
_RAGGED = {"ids": "<u8", "id_offsets": "<i8", "id_weights": "<f4", "events": "<f4", "event_offsets": "<i8"}

_LABELS = {"labels": ("<f8",)}

Plain = dict[str, Any]


def pack_batch(batch: Batch, about: Plain) -> list[Buffer]:
    """Return the parts for a batch; only the ids are copied, into one array.

    `about` is more plain data for the text, with other keys than "size", "features", "events", "position".
    """
    jagged, events = batch.ids.values(), batch.events.values()
    text = {
        **about,
        "size": batch.size,
        "features": _described(batch.ids),
        "events": _described(batch.events),
        "position": batch.position,
    }
    arrays = {
        "ids": _joined([j.values for j in jagged], "<u8"),
        "id_offsets": _joined([j.offsets for j in jagged if j.offsets is not None], "<i8"),
        "id_weights": _joined([j.weights for j in jagged if j.weights is not None], "<f4"),
    }
    kinds = {**DENSE, "labels": "<f8"} if exact(batch.labels) else DENSE
    dense = {name: getattr(batch, name) for name in DENSE}
    arrays |= {name: np.ascontiguousarray(a, kinds[name]) for name, a in dense.items() if a is not None}
    if events:
        arrays["events"] = _joined([j.values for j in events], "<f4")
        arrays["event_offsets"] = _joined([j.offsets for j in events if j.offsets is not None], "<i8")
    return pack_arrays(arrays, text)


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
    arrays = unpack_arrays(text, parts)
    try:
        size = int(text["size"])
        ragged = {name: arrays.pop(name, np.empty(0, dtype)) for name, dtype in _RAGGED.items()}
        for name, array in arrays.items():
            if array.shape[:1] != (size,) or array.dtype.str not in (DENSE[name], *_LABELS.get(name, ())):
                raise ValueError(f"{name} has another type or number of samples")
        if any(array.ndim != 1 or array.dtype.str != _RAGGED[name] for name, array in ragged.items()):
            raise ValueError("ids or events have another type")
        values, offsets, weights, numbers, bounds = ragged.values()
        ids = _features(size, text["features"], values, offsets, weights)
        events = _features(size, text["events"], numbers, bounds, weights[:0])
        dense: dict[str, Any] = arrays
        return Batch(size, ids, **dense, position=text["position"], events=events)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise FrameError(f"a batch does not fit its description: {error}") from error


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
