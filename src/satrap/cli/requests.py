"""How commands ask a run that trains."""

import json
import time
from pathlib import Path
from typing import Any

import click

from satrap.cli.options import notice

LOOK_SECONDS = 0.1
QUIET_SECONDS, AGAIN_SECONDS = 1.0, 10.0
"""Seconds until a command that waits says how far its request is, and until it says so again."""


def ask(
    run: str, command: str, number: int = -1, by: str = "rows", *, as_json: bool
) -> dict[str, Any] | None:
    """Ask the run in a folder, and wait for its answer; print that as JSON and return None, or return it."""
    from satrap.launch.folder import RunFolder
    from satrap.launch.mailbox import Mailbox

    mailbox = Mailbox(RunFolder(Path(run)).requests)
    request = mailbox.ask(command, number, by)
    begun, said, due = time.monotonic(), "", 0.0
    while (answer := mailbox.answer(request)) is None:
        stage, seconds = mailbox.stage(request), time.monotonic() - begun
        if (stage != said and seconds >= QUIET_SECONDS) or seconds >= due > 0:
            notice(f"{seconds:.0f} s: {stage}")
            said, due = stage, seconds + AGAIN_SECONDS
        time.sleep(LOOK_SECONDS)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return None
    return answer
