"""Freed blocks of a batch's size are used again without page faults."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
from satrap.runtime.malloc import keep_freed_memory
keep_freed_memory()
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(27 << 20, np.uint8)[:] = 1
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_a_block_is_faulted_in_once():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 8


RELEASED = """
import numpy as np
from satrap.runtime.malloc import keep_freed_memory, release_freed_memory
def resident():
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")][0]
keep_freed_memory()
blocks = [(np.ones(1 << 20), np.ones(8)) for _ in range(10)]
small = [one for _, one in blocks]
del blocks
kept = resident()
release_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_freed_blocks_are_released_also_between_blocks_in_use():
    found = subprocess.run([sys.executable, "-c", RELEASED], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 60_000  # kB, of 10 blocks of 8 MiB
