"""All checks, in order."""

from __future__ import annotations

from collections.abc import Iterator

from satrap.config import Recipe
from satrap.doctor.finding import Finding
from satrap.doctor.versions import versions


def examine(recipe: Recipe | None = None) -> Iterator[Finding]:
    """Yield what each check finds, as soon as it is known; takes about ten seconds.

    The first run on a machine also compiles the kernels, up to a minute. Nothing is changed, and what is
    written for a test is removed.

    Args:
        recipe: check that it can run here, too.
    """
    yield from versions()
    try:
        # What else there is to check needs these libraries.
        from satrap.doctor import disk, machine, network, requirements, trial
    except (ImportError, OSError) as error:
        yield Finding(
            "libraries",
            "error",
            f"a library cannot be loaded: {error}",
            "install satrap anew, in a new environment",
        )
        return
    yield from machine.machine()
    yield from network.network()
    yield from disk.disk(recipe)
    if recipe is not None:
        yield from requirements.requirements(recipe)
    yield from trial.trial()
