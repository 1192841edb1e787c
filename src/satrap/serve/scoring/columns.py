"""Checks the columns of a request: their names and their numbers of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satrap.errors import did_you_mean
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import CONTEXT, ITEMS, ScoreRequest, kind_of
from satrap.serve.scoring.signature import Signature

_LISTS = {list, np.ndarray}
SHOWN = 12
"""Maximum number of column names in an error."""


def to_request(model: Signature, context: Mapping[str, Any], items: Any, *, max_items: int) -> ScoreRequest:
    """Return a request with the model's columns.

    Args:
        model: the model, which defines the columns.
        context: column -> the value shared by all items.
        items: column -> one value per item, or one mapping of columns to values per item.
        max_items: maximum number of items.

    Raises:
        RequestError: a column is unknown, missing or given twice; there are no items or too many; the columns
            differ in length.
    """
    by_column = _by_column(model, context, items) if isinstance(items, list) else items
    if not isinstance(by_column, Mapping):
        raise _malformed(f"items is a {kind_of(items)}", "send columns of values, or a list of objects")
    if twice := sorted(context.keys() & by_column.keys()):
        raise RequestError(
            422,
            f"column {twice[0]!r} is given twice",
            where=f"{CONTEXT} and {ITEMS}",
            why="the server cannot know which value to use",
            fix="send the column once: in context if all items share the value, else in items",
        )
    check_names(model, [*context, *by_column])
    count = _count(by_column, max_items)
    return ScoreRequest(count, context, by_column)


def check_names(model: Signature, names: Sequence[str]) -> None:
    """Raise `RequestError` for an unknown or missing column."""
    known, given = model.known, set(names)
    if known == given:
        return
    shown = ", ".join(model.columns[:SHOWN]) + (", ..." if len(model.columns) > SHOWN else "")
    for name in names:
        if name not in known:
            missing = [column for column in model.columns if column not in given]
            raise RequestError(
                422,
                f"column {name!r} is unknown",
                why="the model does not read this column; ignoring it would hide a misspelled name",
                fix=f"{did_you_mean(name, missing or model.columns, cutoff=0.5)}the model's columns: {shown}",
            )
    for name in model.columns:
        if name not in given:
            raise RequestError(
                422,
                f"column {name!r} is missing",
                why="the model needs every column; send null for a missing value",
                fix=f"send the column in {CONTEXT} or in {ITEMS}; the model's columns: {shown}",
            )


def check_count(count: int, max_items: int) -> None:
    """Raise `RequestError` if there are no items or too many."""
    if not count:
        raise RequestError(422, "the request has no items", fix="send at least one item to score")
    if count > max_items:
        raise RequestError(
            422,
            f"the request has {count:,} items, more than the limit of {max_items:,}",
            why="a large request delays the requests behind it",
            fix="send several requests, or raise serving.max_items",
        )


def _by_column(model: Signature, context: Mapping[str, Any], items: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of a list of items; each item must have all columns that the context lacks."""
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise _malformed(
                f"item {number} is a {kind_of(item)}", "send each item as an object: column -> value"
            )
        if item.keys() != items[0].keys():
            check_names(model, [*context, *item])
            name = min(item.keys() ^ items[0].keys())
            raise _malformed(
                f"column {name!r} is missing in some items", "send the same columns in each item"
            )
    return {name: [item[name] for item in items] for name in (items[0] if items else ())}


def _count(columns: Mapping[str, Any], max_items: int) -> int:
    """Return the number of items."""
    if _LISTS.issuperset(map(type, columns.values())) and len(sizes := set(map(len, columns.values()))) == 1:
        [count] = sizes
        check_count(count, max_items)
        return count
    counts: dict[str, int] = {}
    for name, values in columns.items():
        if not isinstance(values, list | np.ndarray):
            raise _malformed(
                f"column {name!r} is a {kind_of(values)}",
                f"send a list for each column of {ITEMS}, one value per item; move the column to {CONTEXT} "
                "if all items share its value",
            )
        counts[name] = len(values)
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        raise _malformed(
            f"column {least!r} has {counts[least]:,} values, and {most!r} has {counts[most]:,}",
            "send one value per item for each column",
        )
    count = next(iter(counts.values()), 0)
    check_count(count, max_items)
    return count


def _malformed(what: str, fix: str) -> RequestError:
    return RequestError(422, what, where=ITEMS, fix=fix)
