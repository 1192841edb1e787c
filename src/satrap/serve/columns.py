"""Checks the columns of a request: names, and how many values each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satrap.errors import did_you_mean
from satrap.serve.errors import RequestError
from satrap.serve.model import ServedModel
from satrap.serve.request import CONTEXT, ITEMS, ScoreRequest, kind_of

_LISTS = {list, np.ndarray}
SHOWN = 12
"""Most column names in an error."""


def to_request(model: ServedModel, context: Mapping[str, Any], items: Any, *, max_items: int) -> ScoreRequest:
    """Return a request with the model's columns.

    Args:
        model: says which columns there must be.
        context: column -> the value that all items share.
        items: column -> one value per item, or one mapping of columns to values per item.
        max_items: most items.

    Raises:
        RequestError: a column is unknown, missing or given twice; the columns have no items, too many, or
            unequal numbers of them.
    """
    by_column = _by_column(model, context, items) if isinstance(items, list) else items
    if not isinstance(by_column, Mapping):
        raise _malformed(f"items is a {kind_of(items)}", "give columns of values, or a list of objects")
    if twice := sorted(context.keys() & by_column.keys()):
        raise RequestError(
            422,
            f"column {twice[0]!r} is given twice",
            where=f"{CONTEXT} and {ITEMS}",
            why="it is unclear which of its values count",
            fix="give it once: in context if all items share the value, else in items",
        )
    check_names(model, [*context, *by_column])
    count = _count(by_column, max_items)
    return ScoreRequest(count, context, by_column)


def check_names(model: ServedModel, names: Sequence[str]) -> None:
    """Raise `RequestError` for a column that the model does not know, or that is missing."""
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
                why="the model was trained without it, so a misspelt name would go unnoticed",
                fix=f"{did_you_mean(name, missing or model.columns, cutoff=0.5)}the model's columns: {shown}",
            )
    for name in model.columns:
        if name not in given:
            raise RequestError(
                422,
                f"column {name!r} is missing",
                why="the model needs it; a missing value is null, not a missing column",
                fix=f"give it in {CONTEXT} or in {ITEMS}; the model's columns: {shown}",
            )


def check_count(count: int, max_items: int) -> None:
    """Raise `RequestError` if there are no items, or too many."""
    if not count:
        raise RequestError(422, "there are no items", fix="give at least one item to score")
    if count > max_items:
        raise RequestError(
            422,
            f"there are {count:,} items, and at most {max_items:,} are scored at once",
            why="requests behind a large one wait",
            fix="send several requests, or raise serving.max_items",
        )


def _by_column(model: ServedModel, context: Mapping[str, Any], items: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of a list of items, each of which has all columns that the context lacks."""
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise _malformed(f"item {number} is a {kind_of(item)}", "each item is an object: column -> value")
        if item.keys() != items[0].keys():
            check_names(model, [*context, *item])
            name = min(item.keys() ^ items[0].keys())
            raise _malformed(f"not all items have column {name!r}", "give each item the same columns")
    return {name: [item[name] for item in items] for name in (items[0] if items else ())}


def _count(columns: Mapping[str, Any], max_items: int) -> int:
    """Return how many items there are."""
    if _LISTS.issuperset(map(type, columns.values())) and len(sizes := set(map(len, columns.values()))) == 1:
        [count] = sizes
        check_count(count, max_items)
        return count
    counts: dict[str, int] = {}
    for name, values in columns.items():
        if not isinstance(values, list | np.ndarray):
            raise _malformed(
                f"column {name!r} is a {kind_of(values)}",
                f"{ITEMS} has a list for each column: one value per item; move it to {CONTEXT} if all "
                "items share it",
            )
        counts[name] = len(values)
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        raise _malformed(
            f"column {least!r} has {counts[least]:,} values, and {most!r} has {counts[most]:,}",
            "give each column one value per item",
        )
    count = next(iter(counts.values()), 0)
    check_count(count, max_items)
    return count


def _malformed(what: str, fix: str) -> RequestError:
    return RequestError(422, what, where=ITEMS, fix=fix)
