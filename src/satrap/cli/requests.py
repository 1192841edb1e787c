"""How commands ask a run that trains."""

import json
import time
from pathlib import Path
from typing import Any

import click

LOOK_SECONDS = 0.1


def ask(
    run: str, command: str, number: int = -1, by: str = "rows", *, as_json: bool
) -> dict[str, Any] | None:
    """Ask the run in a folder, and wait for its answer; print that as JSON and return None, or return it."""
    from satrap.launch.folder import RunFolder
    from satrap.launch.mailbox import Mailbox

    mailbox = Mailbox(RunFolder(Path(run)).requests)
    request = mailbox.ask(command, number, by)
    while (answer := mailbox.answer(request)) is None:
        time.sleep(LOOK_SECONDS)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return None
    return answer
