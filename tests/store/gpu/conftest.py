"""Kernels run in Triton's interpreter, or compiled on a GPU; without Triton nothing is collected."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]
elif not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined


@pytest.fixture(autouse=True)
def _loaded_bounds_of_loops() -> None:
    """The interpreter of Triton 3.6 makes numbers of arrays of one element, which NumPy deprecates."""
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0", DeprecationWarning)
