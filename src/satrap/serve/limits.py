"""What clients may ask of a server."""

from __future__ import annotations

from dataclasses import dataclass

from satrap.arguments import checked
from satrap.errors import ConfigError


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server's requests; `ConfigError` for impossible ones.

    Args:
        max_items: most items of a request, default 10,000; more are refused with status 422.
        max_bytes: most bytes of a body, default 8 MiB; more are refused with status 413.
        max_queue: most requests that wait to be scored, default 256; more are refused with status 503.
        deadline: seconds a request may wait to be scored, default 1; after that it is refused with status
            504. A client can ask for less.
    """

    max_items: int = 10_000
    max_bytes: int = 8 << 20
    max_queue: int = 256
    deadline: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_items", "max_bytes", "max_queue", "deadline"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"serving.{name} must be > 0, got {getattr(self, name)}")
