"""Products of parameters of which `make test` runs a part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def covering(*values: Sequence[Any]) -> list[Any]:
    """Return all combinations as parameters; one with each combination of all lists but the last is not slow.

    In those the values of the last list take turns, so that every two values of different lists meet where
    the lists are long enough. A tuple in a list is the values of several parameters.
    """
    cases = []
    for places in itertools.product(*(range(len(some)) for some in values)):
        marks = [pytest.mark.slow] if sum(places) % len(values[-1]) else []
        chosen = [some[at] for some, at in zip(values, places, strict=True)]
        case = [value for one in chosen for value in (one if isinstance(one, tuple) else (one,))]
        cases.append(pytest.param(*case, marks=marks))
    return cases
