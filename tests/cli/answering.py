"""Stands in for a run that answers one request of a command."""

from __future__ import annotations

import threading
from pathlib import Path

from satrap.errors import SatrapError
from satrap.launch.cluster.control_requests import ControlRequest, Mailbox
from tests.cli.command import Answer, satrap


def asked(
    run: Path, answer: dict[str, object] | SatrapError, *arguments: object, command: str = "shards"
) -> tuple[Answer, ControlRequest]:
    """Answer one request; return what the command printed, and the request."""
    box, found = Mailbox(run / "requests"), list[ControlRequest]()

    def reply() -> None:
        while not found:
            found.extend(box.requests())
        box.reply(found[0].id, answer)

    with box.open():
        thread = threading.Thread(target=reply)
        thread.start()
        printed = satrap(command, *arguments)
        thread.join()
    return printed, found[0]
