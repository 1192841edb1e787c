"""The public names of the package are frozen: changing this list is a decision, not an accident."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import satrap

NAMES = [
    "Batch",
    "Categorical",
    "EmbeddedBatch",
    "Jagged",
    "Label",
    "Numeric",
    "Schema",
    "Table",
    "Trainer",
    "Vector",
    "data",
    "losses",
    "metrics",
    "models",
    "nn",
    "optim",
    "store",
    "train",
]

PUBLIC = ["satrap"] + [
    f"satrap.{name}"
    for name in (
        "checkpoint",
        "data",
        "data.streams",
        "dense",
        "export",
        "losses",
        "metrics",
        "models",
        "nn",
        "optim",
        "report",
        "store",
        "train",
    )
]
"""What users import."""

TRITON = ("satrap.models.kernels.", "satrap.store.gpu.kernels.")
"""Folders of kernels for a GPU."""


def test_the_public_names_are_frozen() -> None:
    assert sorted(satrap.__all__) == NAMES
    assert [name for name in NAMES if not hasattr(satrap, name)] == []


def test_every_module_imports_and_exports_what_it_lists() -> None:
    for module in pkgutil.walk_packages(satrap.__path__, "satrap."):
        if module.name.rsplit(".", 1)[-1] == "__main__":
            continue
        if module.name.startswith(TRITON) and find_spec("triton") is None:
            continue
        loaded = importlib.import_module(module.name)
        missing = [name for name in getattr(loaded, "__all__", []) if not hasattr(loaded, name)]
        assert missing == [], module.name


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_shows_the_public_names_alone(name: str) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert satrap.__version__ == version("satrap")


def test_import_stays_light() -> None:
    """`import satrap` must not pull in what only examples and tests need."""
    code = (
        "import sys, satrap; print(*sorted({'pandas', 'sklearn', 'tensorboard', 'ray'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.split() == []
