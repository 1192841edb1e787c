"""Imports of a fork server: all modules that the processes of a run load until their first step.

No module here may start a thread or compute anything, because a fork must be like a new process.
"""

from contextlib import suppress
from typing import Any

import numba.core.registry
import torch._dynamo

import satrap.cli.commands
import satrap.launch.cluster.worker  # noqa: F401

with suppress(ImportError):
    import torch.utils.tensorboard  # noqa: F401 - its package is optional

_target: Any = numba.core.registry.cpu_target
_target.typing_context.refresh()  # loads Numba's registry of functions and types, 0.6 s
_target.target_context.refresh()
