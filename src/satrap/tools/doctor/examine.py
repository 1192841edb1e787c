"""All checks, in order."""

from __future__ import annotations

from collections.abc import Iterator

from satrap.config import Recipe
from satrap.tools.doctor.finding import Finding
from satrap.tools.doctor.versions import versions


def examine(recipe: Recipe | None = None) -> Iterator[Finding]:
    """Yield the finding of each check as soon as it is available; takes about ten seconds.

    The first run on a machine also compiles the kernels, which takes up to a minute. Nothing is changed, and
    test files are removed.

    Args:
        recipe: also check that this recipe can run here.
    """
    yield from versions()
    try:
        # The other checks import these libraries.
        from satrap.tools.doctor import disk, machine, network, requirements, trial
    except (ImportError, OSError) as error:
        yield Finding(
            "libraries",
            "error",
            f"a library cannot be loaded: {error}",
            "reinstall satrap in a new environment",
        )
        return
    yield from machine.machine()
    yield from network.network()
    yield from disk.disk(recipe)
    if recipe is not None:
        yield from requirements.requirements(recipe)
    yield from trial.trial()
