"""Runs that a Ray cluster keeps going when the program that began them ends."""

from collections.abc import Callable, Sequence
from pathlib import Path

from satrap.config import Recipe
from satrap.launchers import ray_controller


def detach(recipe: Recipe, output: str, settings: Sequence[str]) -> None:
    """Have a Ray cluster train a recipe, or continue its run.

    Args:
        recipe: what to do; its file must be at the same place on all nodes.
        output: the run folder, on storage that all nodes have at the same place.
        settings: what overrides keys of the recipe, each KEY=VALUE.

    Raises:
        ConfigError: the recipe names no Ray cluster, it cannot be reached, or it trains this run already.
        ExchangeError: Ray did not start the run's controller.
    """
    folder = Path(output).absolute()
    command = ["-u", "-m", "satrap.cli", "train", str(Path(recipe.source.file).absolute())]
    command += [word for one in settings for word in ("--set", one)]
    command += ["--output", str(folder), "--until-done", "--stop-at-eof"]
    ray_controller.detach(recipe.sections.cluster, folder, command)


def attach(recipe: Recipe, output: str, show: Callable[[str], None], *, stop: bool = False) -> int:
    """Show what a detached run says until it ends, and return its exit code.

    Args:
        recipe: of the run.
        output: the run folder.
        show: called with each line.
        stop: have the run save and end first.

    Raises:
        ConfigError: the cluster cannot be reached, or nothing keeps this run going.
        ExchangeError: its controller died, and Ray did not start it again.
    """
    return ray_controller.attach(recipe.sections.cluster, Path(output).absolute(), show, stop=stop)
