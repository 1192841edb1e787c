"""What a fork server imports leaves nothing behind that its copies would share."""

import json
import subprocess
import sys

LOOK = """
import json, os, sys, threading
from pathlib import Path
before = os.listdir("/proc/self/fd")
import satrap.cli.role_imports
tasks = [(path / "comm").read_text().strip() for path in Path("/proc/self/task").iterdir()]
loaded = [name in sys.modules for name in ("torch._dynamo", "satrap.launch.worker", "satrap.cli.shard")]
print(json.dumps([threading.active_count(), tasks, os.listdir("/proc/self/fd") == before, loaded]))
"""


def test_no_thread_and_no_file() -> None:
    """The thread of pyarrow's allocator excepted, which that allocator starts again in a copy."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    threads, tasks, files_as_before, loaded = json.loads(done.stdout)
    assert (threads, files_as_before, loaded) == (1, True, [True] * 3)
    assert set(tasks[1:]) <= {"jemalloc_bg_thd"}
