"""The thread of an exchange, which serves calls in the order they are made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from satrap.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")


class Serial(ThreadPoolExecutor):
    """One thread with a name; once it is shut down, it rejects calls."""

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `concurrent.futures.Executor.submit`; `StoreError` if it is shut down."""
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError as error:
            raise StoreError("the store is closed", fix="create a new one, or load a checkpoint") from error
