"""The command `satrap`. Commands import heavy modules lazily, so that help is instant."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from satrap.cli import interrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; errors are at most four lines on standard error."""
    before = signal.signal(signal.SIGINT, interrupt.end)
    from satrap.cli.commands import main as run

    signal.signal(signal.SIGINT, before)
    run(arguments)
