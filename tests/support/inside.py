"""`python -m tests.support.inside NAMESPACE MODULE ARGUMENTS...` in a copy: a program on another machine.

The machine is a network namespace, see `tests.cluster.machines`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

from satrap.launch.launchers import fork_server

_NETWORK = 0x40000000  # CLONE_NEWNET


def main(namespace: str, module: str, *arguments: str) -> None:
    with Path("/run/netns", namespace).open() as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", module, *arguments]
    fork_server._set_title(sys.orig_argv)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main(*sys.argv[1:])
