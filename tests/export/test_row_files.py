"""Tables of a run's checkpoints; the commands are tested in `tests/cli/trained/test_checkpoint.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.export.row_files import remove_journals
from satrap.rpc.server.journal import Journal


def test_journals_go_unless_a_shard_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "journals" / "shard-0"
    journal = Journal(folder)
    with pytest.raises(ConfigError, match="another process keeps its journal in this folder"):
        remove_journals(str(tmp_path))
    assert list(folder.glob("*.journal"))
    journal.close()
    remove_journals(str(tmp_path))
    assert not (tmp_path / "journals").exists()
    remove_journals(str(tmp_path))
