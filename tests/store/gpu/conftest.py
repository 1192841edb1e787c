"""Kernels run in Triton's interpreter, or compiled on a GPU; without Triton nothing is collected."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]
elif not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
