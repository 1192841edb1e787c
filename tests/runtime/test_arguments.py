"""Arguments are checked by their annotations, and come in the form that these ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from satrap.errors import ConfigError
from satrap.runtime.arguments import checked

T = TypeVar("T")


@checked(size="give a number of rows")
def call(
    size: int = 1,
    *rest: int,
    rate: float | None = None,
    word: Literal["sum", "mean"] | None = None,
    names: tuple[str, ...] = (),
    pair: tuple[float, float] = (0.0, 0.0),
    counts: Sequence[int] = (),
    ids: Iterable[int] = (),
    table: Mapping[str, float] | None = None,
    array: npt.NDArray[np.float32] | None = None,
    path: str = "",
    make: Callable[[int], int] | None = None,
    anything: Any = None,
    item: T | None = None,
    on: bool = False,
) -> dict[str, Any]:
    """Return the arguments as they came."""
    return dict(locals())


@checked()
@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()

    @classmethod
    def of(cls, left: int) -> Pair:
        return cls(left)

    def plus(self, other: int) -> int:
        return self.left + other


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("size", "4", "size must be a whole number, got '4'"),
        ("size", True, "size must be a whole number, got True"),
        ("size", 4.0, "size must be a whole number, got 4.0"),
        ("size", None, "size must be a whole number, got None"),
        ("rate", "fast" * 40, f"rate must be a number or None, got '{'fast' * 14}..."),
        ("word", "summ", "word 'summ' is unknown"),
        ("word", 3, "word must be 'sum' or 'mean' or None, got 3"),
        ("word", np.zeros((2, 2)), "word must be 'sum' or 'mean' or None, got a value of type ndarray"),
        ("names", "user", "names must be a list of texts, got 'user'"),
        ("names", ["user", 3], "names[1] must be a text, got 3"),
        ("pair", (1.0,), "pair must be a list of numbers, got a value of type tuple"),
        ("counts", [1, "2"], "counts[1] must be a whole number, got '2'"),
        ("ids", {"a": 1}, "ids[0] must be a whole number, got 'a'"),
        ("ids", 3, "ids must be a list of whole numbers, got 3"),
        ("table", {"a": "b"}, "table['a'] must be a number, got 'b'"),
        ("table", {1: 2.0}, "table: the key must be a text, got 1"),
        ("array", [1.0], "array must be a ndarray or None, got a value of type list"),
        ("make", 3, "make must be a function or None, got 3"),
        ("make", int, None),
        ("on", 1, "on must be True or False, got 1"),
        ("size", Pair, "size must be a whole number, got the class Pair"),
        ("anything", Pair, None),
        ("item", Pair, None),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: Any, what: str | None) -> None:
    if what is None:
        assert call(**{name: value})[name] is value
        return
    with pytest.raises(ConfigError) as caught:
        call(**{name: value})
    assert caught.value.what.startswith(f"call: {what}")
    assert caught.value.fix == {"size": "give a number of rows", "word": caught.value.fix}.get(name, "")


def test_values_come_in_the_form_that_the_annotation_asks_for() -> None:
    found = call(
        np.int64(3),
        rate=np.float32(0.5),
        names=["a"],
        counts=np.array([1, 2]),
        ids=iter([1]),
        table={"a": np.float64(1.5)},
        path=Path("runs") / "x",
        anything=[np.int64(1)],
        on=np.True_,
    )
    assert [type(found[name]) for name in ("size", "rate", "names", "path", "on")] == [
        int,
        float,
        tuple,
        str,
        bool,
    ]
    assert (found["size"], found["rate"], found["names"], found["path"]) == (3, 0.5, ("a",), "runs/x")
    assert found["counts"] == (1, 2)
    listed = [1, 2]
    assert call(counts=listed)["counts"] is listed


def test_a_class_has_its_constructor_and_methods_checked() -> None:
    assert Pair(1, [2, 3]) == Pair(1, (2, 3))  # type: ignore[arg-type]
    assert Pair(1, range(2, 4)) == Pair(1, (2, 3))  # type: ignore[arg-type]
    assert Pair.of(1).plus(2) == 3
    wrong: Any = "2"
    for make, owner in (
        (lambda: Pair(wrong), "Pair: left"),
        (lambda: Pair.of(wrong), "Pair.of: left"),
        (lambda: Pair(1).plus(wrong), "Pair.plus: other"),
    ):
        with pytest.raises(ConfigError, match=f"{owner} must be a whole number, got '2'"):
            make()


def test_what_python_refuses_python_refuses() -> None:
    """Missing and unknown arguments; the signature is the function's own."""
    with pytest.raises(TypeError, match="unknown"):
        call(unknown=1)
    with pytest.raises(TypeError, match="left"):
        Pair()  # type: ignore[call-arg]
    assert list(inspect.signature(call).parameters)[:3] == ["size", "rest", "rate"]
    assert call.__doc__ == "Return the arguments as they came."
