"""All that the processes of a run load until their first step: what a fork server imports for its copies.

Nothing here may start a thread or compute anything: a copy must be like a process that has just begun.
"""

from contextlib import suppress
from typing import Any

import numba.core.registry
import torch._dynamo

import satrap.cli.commands
import satrap.launch.worker  # noqa: F401

with suppress(ImportError):
    import torch.utils.tensorboard  # noqa: F401 - its package is optional

_target: Any = numba.core.registry.cpu_target
_target.typing_context.refresh()  # reads what Numba knows of functions and types, 0.6 s
_target.target_context.refresh()
