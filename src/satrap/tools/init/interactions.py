"""Data without a label: each row is a user's choice of an item, such as a film or a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from satrap.data.encode.encoder import MISSING
from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.columns import as_array
from satrap.data.formats.lists import as_lists, flattened
from satrap.errors import DataError
from satrap.schema import MISSING_ID
from satrap.tools.init.choose import Features, add_features
from satrap.tools.init.kinds import Decision
from satrap.tools.init.label import LabelChoice, names_rating
from satrap.tools.init.names import meaning, words
from satrap.tools.init.profile import Column, Profile, flat
from satrap.tools.init.times import is_later
from satrap.tools.init.write import comment, scalar

DIM = 64
"""Width of the rows of users and items."""
LATEST = 50
"""Most items of a history that are used."""
_REPEATS = 20
"""Least rows of a sample, beyond one per item, that show whether a column depends on the item."""
_CHANGES = 0.01
"""Share of such rows that may have another value, such as a title that was corrected."""
_COPIES = 0.9
"""Share of values from which a column is a copy of another one."""
_ITEMS = 0.5
"""Least share of a list's values that are items if the list is a history."""
_AGAIN = 0.05
"""Share of rows with the user and item of another row up to which users hardly choose an item twice."""
_ROWS_EACH = 10
"""Least rows of a sample per user for which a user without training rows is probably new."""
SOME_NEW, MOSTLY_NEW = 0.1, 0.5
"""Shares of later rows with new users above which they are worth a warning, and a split by time measures
little of the vectors of users."""
_VERBS = {
    "watched": words("movie movies film films video show episode series anime clip"),
    "listened": words("song track artist music album podcast"),
    "read": words("book books news article story post paper page isbn"),
    "bought": words("product products sku asin purchase order goods"),
    "visited": words("place venue poi hotel business restaurant location"),
    "played": words("game games"),
}
_HISTORY = set(words("history hist seen watched clicked bought previous past recent sequence session viewed"))

Side = Literal["user", "item", "history"]


@dataclass(slots=True)
class Interactions:
    """The columns that describe users and items.

    Args:
        user: column of users; None: only other columns describe them.
        item: column of items.
        sides: every further column that is used, with its side and the reason. A history is a list
            of items, and belongs to the user.
        again: about the share of rows whose user chose the item in another row as well.
    """

    user: str | None
    item: str
    sides: dict[str, tuple[Side, str]] = field(default_factory=dict)
    again: float = 0.0

    @property
    def history(self) -> str | None:
        """The first column that is a history."""
        return next((name for name, (side, _) in self.sides.items() if side == "history"), None)

    def features(self, facts: Profile, decisions: Mapping[str, Decision]) -> Features:
        """Return the features of all columns; the item is the first one of its tower."""
        result = Features()
        for name in (self.user, self.item):
            if name is not None:
                distinct = facts.columns[name].distinct
                count = f"{'' if distinct.exact else 'about '}{distinct.count:,}"
                result.add(
                    name, {"dim": DIM}, f"as requested, {count} {'items' if name == self.item else 'users'}"
                )
        for name, (side, why) in self.sides.items():
            if side == "history":
                result.add(name, self._latest(decisions[name]) | {"pooling": "mean"}, why)
                continue
            add_features(result, facts.columns[name], decisions[name], bins=0)
            keys, reason = result.lines[name]
            result.lines[name] = keys, f"{reason}; {why}"
        return result

    def items(self, features: Features) -> list[str]:
        """Return the names of the item's features, the item first."""
        of_item = {self.item} | {name for name, (side, _) in self.sides.items() if side == "item"}
        return [name for name, (keys, _) in features.lines.items() if keys.get("column", name) in of_item]

    @property
    def excluded(self) -> str | None:
        """The feature of users whose items are not ranked again, since they hardly choose an item twice."""
        return self.user if self.again <= _AGAIN else None

    def in_order(self, facts: Profile, decisions: Mapping[str, Decision]) -> list[str]:
        """Return comments that propose a model of the order of the history; none without a history."""
        name = self.history
        if name is None:
            return []
        keys = self._latest(decisions[name]) | {"pooling": "none", "sequence": "events"}
        once = self.user is not None and facts.rows < 1.1 * facts.columns[self.user].distinct.count
        model = {"name": "sasrec"} | ({"every_event": True} if once else {})  # a row per user: few targets
        why = f"If the order of {name} matters, sasrec may be better; it reads the history only."
        return [
            f"  {comment(why)}",
            "  # Replace its line above and the section model with:",
            f"  #   {scalar(name)}: {scalar(keys)}",
            f"  #   model: {scalar(model)}",
        ]

    def _latest(self, decision: Decision) -> dict[str, Any]:
        separator = {"separator": decision.separator} if decision.separator else {}
        latest = {"max_values": LATEST, "keep": "last"}
        return {"dim": DIM, "table": self.item, "multi": True, **separator, **latest}


def implicit_label(item: str, names: Sequence[str]) -> LabelChoice:
    """Return a label that is 1 in every row, named by the column of items; `names` are taken."""
    named = set(words(item))
    name = next((verb for verb, things in _VERBS.items() if named & set(things)), "chosen")
    while name in names:
        name += "_item"
    return LabelChoice(name, {"implicit": True}, "no column: every row is a choice")


def find_interactions(
    facts: Profile,
    decisions: dict[str, Decision],
    unused: dict[str, str],
    *,
    user: str | None,
    item: str,
    keep: Sequence[str] = (),
) -> Interactions:
    """Return which columns describe the item and which the user, from a sample of rows.

    Columns that a recommendation cannot know, or that determine the item, move from `decisions` to `unused`,
    unless they are in `keep`. Raises `DataError` if nothing describes the user, or the columns of users or
    items have no ids.
    """
    for name in filter(None, (user, item)):
        _check_ids(facts.columns[name], "user" if name == user else "item")
        decisions[name] = Decision("category", "as requested")
        unused.pop(name, None)
    ids = {name: _Ids.of(facts, name, decision) for name, decision in decisions.items()}
    result = Interactions(user, item, again=_again(ids[user], ids[item], facts.rows) if user else 0.0)
    for name in [name for name in decisions if name not in (user, item)]:
        column, decision = facts.columns[name], decisions[name]
        if decision.kind == "values" and _is_history(ids[name], ids[item], name):
            side, why = _history(ids[name], ids[item], item)
        else:
            side, why = _side(column, decision, ids, user, item)
        if side is None and name not in keep:
            unused[name] = why
            del decisions[name]
        else:
            result.sides[name] = (side, why) if side else ("user", "used as requested")
    if user is None and all(side == "item" for side, _ in result.sides.values()):
        raise DataError(
            "no column describes the user",
            why="a recommendation needs something about its user, such as an id or a history of items",
            fix="name the column of users: --user COLUMN",
        )
    return result


def new_users(facts: Profile, user: str | None, split: dict[str, Any]) -> float:
    """Return the share of later rows, in a split by time, whose user has no training row.

    0 if the sample has too few rows of a user for an estimate.
    """
    sample = facts.sample
    if user is None or sample.num_rows < _ROWS_EACH * facts.columns[user].distinct.count:
        return 0.0
    column = facts.columns[split["column"]]
    later = is_later(as_array(sample.column(column.name)), split, column.odd if column.numbers else ())
    users = hash_ids(flat(as_array(sample.column(user))))
    return 1 - float(np.isin(users[later], users[~later]).mean()) if later.any() else 0.0


def _check_ids(column: Column, role: str) -> None:
    wrong = column.unusable or ("its values are lists" if column.is_list else "")
    if not wrong and column.distinct.count < 2:
        wrong = f"there is only one {role}" if column.values else "it has no values"
    if wrong:
        raise DataError(
            f"the column {column.name!r} cannot be the {role}: {wrong}",
            fix=f"choose another column: --{role} COLUMN",
        )


@dataclass(frozen=True, slots=True)
class _Ids:
    """Values of a column in a sample of rows.

    `codes` is int64[rows], a number of each row's value, or of all values of a list. For lists, `values` is
    uint64[values], the ids, and `rows` int64[values], the row of each.
    """

    codes: Any
    values: Any
    rows: Any

    @staticmethod
    def of(facts: Profile, name: str, decision: Decision) -> _Ids:
        array = flat(as_array(facts.sample.column(name)))
        lists = as_lists(array, decision.separator, pa.array(MISSING))
        counts, values = (np.ones(len(array), np.int64), array) if lists is None else flattened(lists)
        ids, rows = hash_ids(flat(values)), np.repeat(np.arange(len(array)), counts)
        sums = np.zeros(len(array), np.uint64)
        np.add.at(sums, rows, ids)
        return _Ids(np.unique(sums, return_inverse=True)[1], ids, rows)

    @property
    def count(self) -> int:
        """Number of different values."""
        return int(self.codes.max()) + 1

    def changes(self, by: _Ids) -> float:
        """Return how often a row has another value than other rows with its value of `by`, from 0 to 1.

        1 also if too few rows share a value of `by`.
        """
        pairs = len(np.unique(self.codes * by.count + by.codes))
        repeats = len(self.codes) - by.count
        return (pairs - by.count) / repeats if repeats >= _REPEATS else 1.0


def _again(user: _Ids, item: _Ids, rows: int) -> float:
    """Return the share of all rows whose user chose the item before or after, from a sample of them."""
    sampled = len(user.codes)
    pairs = len(np.unique(user.codes * item.count + item.codes))
    return (1 - pairs / sampled) * rows / sampled  # both rows of a repetition have to be in the sample


def _is_history(lists: _Ids, item: _Ids, name: str) -> bool:
    there = lists.values[lists.values != MISSING_ID]
    named = bool(_HISTORY & set(words(name))) or len(np.unique(there)) >= 0.1 * item.count
    return named and len(there) > 0 and bool(np.isin(there, item.values).mean() >= _ITEMS)


def _history(lists: _Ids, item: _Ids, name: str) -> tuple[Side | None, str]:
    """Return "history" and the reason, or None and the reason if most histories contain their row's item."""
    held = len(np.unique(lists.rows[lists.values == item.values[lists.rows]]))
    share = held / max(1, len(np.unique(lists.rows)))
    if share > _COPIES:
        return None, f"a history with the {name} of its own row in {share:.0%} of the rows leaks it"
    return "history", f"a history: {name} that the user chose before; they share their rows with {name}"


def _side(
    column: Column, decision: Decision, ids: Mapping[str, _Ids], user: str | None, item: str
) -> tuple[Side | None, str]:
    """Return the side of a column and the reason; None if it should not be used."""
    name, values = column.name, ids[column.name]
    of_item, of_user = values.changes(ids[item]), values.changes(ids[user]) if user else 1.0
    if of_user <= min(_CHANGES, of_item):
        return "user", f"the same in all rows of a {user}"
    if of_item <= _CHANGES:
        if decision.kind == "category" and values.count > _COPIES * ids[item].count:
            return None, f"another name of {item}"
        return "item", f"the same in all rows of a {item}"
    if names_rating(column):
        return (
            None,
            f"known only after the choice; all rows count. --label {scalar(name)} predicts it instead",
        )
    if decision.why == "binary":
        return None, f"differs within rows of a {item}. If it marks the choices, use --label {scalar(name)}"
    if decision.kind in ("number", "vector") or meaning(name) == "amount":
        return None, f"a number that differs within rows of a {item}, known only after the choice?"
    if ids[item].changes(values) <= _CHANGES:
        return None, f"each value occurs with one {item}, so it leaks it"
    if user and values.count > ids[user].count and ids[user].changes(values) <= _CHANGES:
        return None, f"each value occurs with one {user}, as sessions do, so later rows have other values"
    return "user", "differs between rows, so a recommendation must know it"
