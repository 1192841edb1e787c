"""A command waits for the run's answer, and prints it as JSON if that is wanted."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from satrap.cli.runs import requests
from satrap.cli.runs.requests import ask
from satrap.errors import ConfigError
from satrap.launch.cluster import control_requests
from satrap.launch.cluster.control_requests import ControlRequest, Mailbox
from satrap.train.resharding.requests import ReshardRequest


@pytest.mark.parametrize("as_json", [True, False])
def test_the_answer_is_waited_for(
    tmp_path: Path, as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.01)
    box, answer = Mailbox(tmp_path / "requests"), {"said": "done"}

    def reply() -> None:
        while not (found := list(box.requests())):
            pass
        box.reply(found[0].id, {**answer, "number": found[0].number})

    with box.open():
        thread = threading.Thread(target=reply)
        thread.start()
        got = ask(str(tmp_path), "workers", 3, as_json=as_json)
        thread.join()
    assert got == (None if as_json else {"said": "done", "number": 3})
    printed = capsys.readouterr().out
    assert (json.loads(printed) if as_json else printed) == ({"said": "done", "number": 3} if as_json else "")


def test_nobody_waits_where_no_run_is_at_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run in this folder accepts requests"):
        ask(str(tmp_path), "list", as_json=False)


def test_a_command_that_waits_says_how_far_its_request_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes the request, gives an order, and answers, each once the command has said so far."""
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(requests, "QUIET_SECONDS", 0.0)
    box, stages = Mailbox(tmp_path / "requests"), list[str]()

    def said(text: str) -> None:
        stages.append(text.partition(": ")[2])
        if len(stages) == 1:
            taken.extend(box.requests())
        elif len(stages) == 2:
            box.give(ReshardRequest(taken[0].id, (), {}, 1, False, "rows"))
        else:
            box.withdraw()
            box.reply(taken[0].id, {"said": "done"})

    taken: list[ControlRequest] = []
    monkeypatch.setattr(requests, "notice", said)
    with box.open():
        ask(str(tmp_path), "add", as_json=False)
    assert [stage.split()[0] for stage in stages] == ["waiting", "the", "the"]
    assert "a new process starts" in stages[1]
    assert "rows" in stages[2]
