"""The process: what it refuses before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.exchange.servers.serve import main
from satrap.rpc import create_key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0.0.0.0:0"], "needs a key"),
        (["nonsense"], "is no HOST:PORT"),
        (["127.0.0.1:0", "--key-file", "missing"], "cannot read the key file"),
    ],
)
def test_bad_arguments_end_with_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["serve", *arguments])
    assert main() == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_a_key_that_others_can_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    monkeypatch.setattr("sys.argv", ["serve", "0.0.0.0:0", "--key-file", str(tmp_path / "key")])
    assert main() == 2
    assert "its mode is 0644" in capsys.readouterr().err
