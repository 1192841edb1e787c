"""Detached runs, which a Ray cluster continues after the starting program has ended."""

from collections.abc import Callable, Sequence
from pathlib import Path

from satrap.config import Recipe
from satrap.launch.launchers import ray_controller


def detach(recipe: Recipe, output: str, settings: Sequence[str]) -> None:
    """Start or continue the run of a recipe on a Ray cluster.

    Args:
        recipe: the recipe; its file must be at the same path on all nodes.
        output: the run folder, on storage that all nodes mount at the same path.
        settings: overrides of recipe keys, each KEY=VALUE.

    Raises:
        ConfigError: the recipe has no Ray cluster, or the cluster cannot be reached or already trains this
            run.
        ExchangeError: Ray did not start the run's controller.
    """
    folder = Path(output).absolute()
    command = ["-u", "-m", "satrap.cli", "train", str(Path(recipe.source.file).absolute())]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--output", str(folder), "--until-done", "--stop-at-eof"]
    ray_controller.detach(recipe.sections.cluster, folder, command)


def attach(recipe: Recipe, output: str, show: Callable[[str], None], *, stop: bool = False) -> int:
    """Show the output of a detached run until it ends, and return its exit code.

    Args:
        recipe: recipe of the run.
        output: the run folder.
        show: called with each line.
        stop: make the run save and end first.

    Raises:
        ConfigError: the cluster cannot be reached, or the run has no controller.
        ExchangeError: the run's controller died, and Ray did not restart it.
    """
    return ray_controller.attach(recipe.sections.cluster, Path(output).absolute(), show, stop=stop)
