"""The Ray cluster that tests share, and what tests need to run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from hypothesis import settings

from satrap.tools.doctor.versions import fits
from tests.launch.launchers.ray_nodes import Nodes
from tests.support import forked
from tests.support.examples import examples

forked.install()
settings.register_profile("tests", max_examples=examples(100))
settings.load_profile("tests")

# pytest shows the two sides of a failed `assert` in test files, elsewhere only if it is told so.
pytest.register_assert_rewrite(
    "tests.cluster.mesh_runs",
    "tests.store.requests",
    "tests.store.shards",
    "tests.support.batches",
    "tests.support.exact_runs",
    "tests.support.strangers",
    "tests.support.trainers",
    "tests.train.ranks",
)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    with Nodes([4, 4]) as started:
        yield started


@pytest.fixture(scope="session")
def frozen_imports() -> None:
    """What is imported is left out of collections of garbage; making a network has a whole one."""
    import satrap.cli.role_imports  # noqa: F401

    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("pytorch"):
        if not fits(version("torch"), f">={mark.args[0]}"):
            pytest.skip(f"needs PyTorch {mark.args[0]}")
