"""Control requests to a running training."""

import json
import time
from pathlib import Path
from typing import Any

import click

from satrap.cli.options import notice

LOOK_SECONDS = 0.1
QUIET_SECONDS, AGAIN_SECONDS = 1.0, 10.0
"""Seconds until a waiting command prints the stage of its request, and until it repeats it."""


def ask(
    run: str, command: str, number: int = -1, by: str = "rows", *, as_json: bool
) -> dict[str, Any] | None:
    """Send a request to the run in a folder and wait; return the answer, or None after printing it as
    JSON."""
    from satrap.launch.cluster.control_requests import Mailbox
    from satrap.launch.folder.run_folder import RunFolder

    mailbox = Mailbox(RunFolder(Path(run)).requests)
    request = mailbox.ask(command, number, by)
    begun, printed, due = time.monotonic(), "", 0.0
    while (answer := mailbox.answer(request)) is None:
        stage, seconds = mailbox.stage(request), time.monotonic() - begun
        if (stage != printed and seconds >= QUIET_SECONDS) or seconds >= due > 0:
            notice(f"{seconds:.0f} s: {stage}")
            printed, due = stage, seconds + AGAIN_SECONDS
        time.sleep(LOOK_SECONDS)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return None
    return answer
