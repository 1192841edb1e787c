"""Settings of PyTorch's threads.

GNU OpenMP, which PyTorch's CPU build uses, lets its threads spin for milliseconds while they wait for each
other. satrap reads, looks up and updates on its own threads. When one of them holds a core, a spinning team
stalls in every small operation (20 times slower, measured on two cores; docs/decisions/0003). A short spin
avoids that and costs nothing on an idle machine, but it can only be set before PyTorch is loaded.
"""

from __future__ import annotations

import os
import sys

from satrap.runtime.environment import variables

SPIN_COUNT = "1000"
"""Iterations of a spin, a few microseconds: longer than a gap in an operation, shorter than a time slice."""


def shorten_spinning() -> None:
    """Set `GOMP_SPINCOUNT` unless the user chose a policy or PyTorch is loaded already."""
    if "torch" not in sys.modules and not _chosen():
        variables()["GOMP_SPINCOUNT"] = SPIN_COUNT


def default_threads(present: int) -> int:
    """Return how many threads PyTorch should use inside an operation; it uses `present` now.

    The result is `present` if waiting threads yield their core, else at most all cores but one.
    """
    return present if _chosen() else max(1, min(present, (os.cpu_count() or 1) - 1))


def _chosen() -> bool:
    return any(name in variables() for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
