import stat
from pathlib import Path

from satrap.rpc import read_key
from tests.cli.command import satrap


def test_a_key_can_be_read_by_servers_and_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "cluster.key"
    answer = satrap("key", file)
    assert (answer.code, "--key" in answer.out) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read_key(file)
    assert file.read_text().strip() not in answer.out


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "cluster.key"
    file.write_text("mine")
    satrap("key", file).assert_refused("cannot create the key file: File exists", str(file))
    assert file.read_text() == "mine"
