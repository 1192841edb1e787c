"""What a fork server imports leaves nothing behind that its copies would share."""

import json
import subprocess
import sys
from pathlib import Path

LOADED = [
    "satrap.cli.role_imports",
    "torch._dynamo",
    "satrap.launch.cluster.worker",
    "satrap.cli.roles.shard",
]


def test_no_thread_and_no_file() -> None:
    """The thread of pyarrow's allocator excepted, which that allocator starts again in a copy.

    Looks at the server that tests share.
    """
    command = [sys.executable, "-m", "tests.support.inherited", *LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    server, files, loaded = json.loads(done.stdout)
    assert (files, loaded) == ([0, 1, 2], [True] * len(LOADED))
    tasks = {path.name: (path / "comm").read_text() for path in Path(f"/proc/{server}/task").iterdir()}
    assert tasks.pop(str(server))
    assert {*tasks.values()} <= {"jemalloc_bg_thd\n"}
