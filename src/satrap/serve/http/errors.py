"""Errors that answer a request: an HTTP status, and the four parts of a `SatrapError`."""

from __future__ import annotations

from collections.abc import Mapping

from satrap.errors import ConfigError, DataError, SatrapError


class RequestError(SatrapError):
    """A rejected request.

    Args:
        status: HTTP status of the answer.
        what, where, why, fix: see `SatrapError`.
        headers: additional headers of the answer.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        where: str = "",
        why: str = "",
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, fix=fix)
        self.status, self.headers = status, dict(headers or {})


def status_of(error: SatrapError) -> int:
    """Return the HTTP status of an error: 422 if the caller sent unusable values, else 500."""
    if isinstance(error, RequestError):
        return error.status
    return 422 if isinstance(error, DataError | ConfigError) else 500
