"""Hints from the name of a column about its values."""

from __future__ import annotations

import re
from typing import Literal


def words(name: str) -> list[str]:
    """Return the words of a name such as `userId`, `user_id` or `User-ID`, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def _with_keys(things: set[str]) -> set[str]:
    return things | {thing + key for thing in things for key in ("id", "key", "code")}


_IDS = set(words("id ids uuid guid key code hash no nr"))
_USERS = set(words("user users customer visitor member reader client"))
_THINGS = _USERS | set(words("item product seller shop store device session campaign"))
_USER_IDS = _with_keys(_USERS) | {"uid"}
_KEYS = _IDS | (_with_keys(_THINGS) - _THINGS)
_KEYS |= set(words("uid iid sku isbn asin zip zipcode postcode postal"))
_CLASSES = set(words("type category subcategory genre brand city country region language currency channel"))
_CLASSES |= set(words("gender sex segment cluster status platform browser os"))
_COUNTS = set(words("n num nb no nr number count total sum avg mean median min max unique distinct"))
"""First words of names of amounts: `n_ids`, `no_of_items`."""
_MEASURES = set(
    words("age price cost amount cents usd eur gbp micros revenue income spend spent budget sales")
)
_MEASURES |= set(
    words("balance value discount fee tax count counts cnt total sum avg mean min max views clicks")
)
_MEASURES |= set(
    words("impressions orders purchases visits reviews likes votes followers stock qty quantity")
)
_MEASURES |= set(
    words("volume score scores rating ratings rate ratio share pct percent probability affinity")
)
_MEASURES |= set(
    words("similarity distance length width height weight size duration ms seconds minutes hours")
)
_MEASURES |= set(words("days weeks months years tenure recency frequency rank bytes"))
_SPAN = re.compile(r"\d+(d|h|w|m|y|days?|hours?|weeks?|months?|years?)(?![a-z])", re.IGNORECASE)
"""A time span such as 7d, for amounts per period."""
_OF = set(words("of per by in for"))


def meaning(name: str) -> Literal["id", "class", "amount"] | None:
    """Return whether whole numbers of this name identify things, classes of things, or are amounts.

    None if the name gives no hint.

    The last word decides, or in `price_per_sku` the word before `per`. A word for a thing means an id only if
    it is alone or next to a word such as id or key: `user_orders` is an amount.
    """
    parts = [word for word in words(name) if not word.isdigit()]
    if len(parts) > 1 and parts[0] in _COUNTS:
        return "amount"
    end = next((i for i, word in enumerate(parts) if i and word in _OF), len(parts))
    if end and parts[end - 1] in _KEYS | _CLASSES:
        return "id" if parts[end - 1] in _KEYS else "class"
    if _MEASURES & set(parts) or _SPAN.search(name):
        return "amount"
    return "id" if parts and (_KEYS & set(parts[:end]) or set(parts) <= _THINGS) else None


def names_user(name: str) -> bool:
    """Return whether a name means user ids."""
    rest = {word for word in words(name) if not word.isdigit()} - _IDS
    return bool(rest) and rest <= _USER_IDS
