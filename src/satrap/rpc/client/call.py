"""Futures that the thread of a `Loop` completes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.wire.frames import Buffer
from satrap.rpc.wire.text import MAX_ANSWER, unpack_text

T = TypeVar("T")


class Call(Generic[T]):
    """Completes a future once; the caller waits for it and cannot cancel it."""

    def __init__(self) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()
        self._left = 1
        self._result: T | None = None

    def expect(self, answers: int, result: T) -> None:
        """Let `count` complete the future with a result after this many responses."""
        self._left, self._result = answers, result

    def succeed(self, result: T) -> None:
        """Complete the future."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: SatrapError) -> None:
        """Complete the future with an error."""
        if not self.future.done():
            self.future.set_exception(error)

    def answer(self, parts: Any, error: SatrapError | None) -> None:
        """Complete the future with the parts of a response, or its error."""
        if error is None:
            self.succeed(parts)
        else:
            self.fail(error)

    def count(self, _: Sequence[Buffer], error: SatrapError | None) -> None:
        """Count one of several responses."""
        if error is not None:
            self.fail(error)
        self._left -= 1
        if self._left == 0:
            self.succeed(self._result)  # type: ignore[arg-type]


def told(parts: Sequence[Buffer]) -> dict[str, Any]:
    """Return the content of a text response; raise an `ExchangeError` if it is not a text."""
    if not parts:
        raise ExchangeError("a server sent a response without parts")
    return unpack_text(parts[0], most=MAX_ANSWER)
