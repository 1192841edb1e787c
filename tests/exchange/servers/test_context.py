"""What must be there before two threads send messages without copying them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from zmq.utils.garbage import gc
from satrap.exchange.servers.context import new_context
assert not gc.is_alive()
context = new_context()
print(gc.is_alive(), gc._push is not None, context.term())
"""


def test_the_thread_that_frees_messages_runs_before_the_first_is_sent() -> None:
    """In a process of its own: in this one, others have sent messages."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "None"], done.stderr
