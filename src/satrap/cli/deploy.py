"""`satrap deploy`: manifests for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from satrap.cli.options import F, byte_size, debug_option, set_option

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.deploy import Request


def _label(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        found[key] = text
    return found


_COMMON = (
    click.argument("recipe"),
    set_option,
    click.option("--image", metavar="IMAGE", help="Container image; default satrap:VERSION."),
    click.option("--name", help="First part of the names of all objects; default the recipe's name."),
    click.option("--namespace", help="Of all objects; default the current one of kubectl."),
    click.option("--env-secret", "env_secrets", multiple=True, metavar="NAME", help="Secret with variables."),
    click.option("--service-account", metavar="NAME", help="Of all pods."),
)
_TRAINING = (
    click.option(
        "--data-claim", metavar="CLAIM", help="Volume with the data that the recipe names by paths."
    ),
    click.option("--storage", callback=byte_size, metavar="SIZE", help="Of the run folder; default 20GiB."),
    click.option("--storage-class", metavar="NAME", help="Of all volumes; default the cluster's."),
    click.option("--shared", is_flag=True, help="Shards mount the run folder, too (ReadWriteMany)."),
    click.option(
        "--journal",
        callback=byte_size,
        metavar="SIZE",
        help="Of a shard's journal; default twice its memory.",
    ),
    click.option(
        "--shard-memory",
        callback=byte_size,
        metavar="SIZE",
        help="Default by embedding.memory and cluster.shards.",
    ),
    click.option(
        "--worker-memory",
        callback=byte_size,
        metavar="SIZE",
        help="Of a worker besides rows; default 4GiB.",
    ),
    click.option("--shard-cpu", type=click.FloatRange(0, min_open=True), help="Cores of a shard; default 2."),
    click.option("--worker-cpu", type=click.IntRange(1), help="Cores of a worker; default 4."),
    click.option(
        "--shard-nodes",
        multiple=True,
        callback=_label,
        metavar="KEY=VALUE",
        help="Label of the shards' nodes.",
    ),
    click.option(
        "--worker-nodes",
        multiple=True,
        callback=_label,
        metavar="KEY=VALUE",
        help="The same for workers.",
    ),
    click.option("--one-zone", is_flag=True, help="All pods in one zone."),
    click.option("--queue", metavar="NAME", help="Kueue's LocalQueue."),
    click.option(
        "--ray-version",
        metavar="VERSION",
        help="Of the image, with cluster.launcher: ray; default 2.60.0.",
    ),
    click.option(
        "--key-secret", metavar="NAME", help="Secret with the key as cluster.key; default NAME-key."
    ),
)


_SERVERS = (
    click.option("--server-memory", callback=byte_size, metavar="SIZE", help="Default by embedding.memory."),
    click.option(
        "--server-cpu", type=click.FloatRange(0, min_open=True), help="Cores of a server; default 2."
    ),
    click.option(
        "--drain",
        type=click.IntRange(0),
        metavar="SECONDS",
        help="How long a server answers on after SIGTERM; default 15.",
    ),
    click.option("--serve-secret", metavar="NAME", help="Secret with the clients' key; default NAME-serve."),
)


def _with(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Return a decorator that adds options."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _asked(recipe: str, overrides: Sequence[str], given: Mapping[str, Any]) -> tuple[Recipe, Request]:
    from importlib.metadata import version

    from satrap.config import load
    from satrap.deploy import Request
    from satrap.deploy.request import name_of

    loaded = load(recipe, overrides)
    cuda = loaded.sections.training.device.startswith("cuda")
    defaults = {"name": name_of(loaded.name), "image": f"satrap:{version('satrap')}{'-cuda' * cuda}"}
    return loaded, Request(**(defaults | {name: value for name, value in given.items() if value is not None}))


@click.group()
def deploy() -> None:
    """Write what a cluster needs to run a recipe."""


@deploy.command()
@_with((*_COMMON, *_TRAINING, *_SERVERS))
@click.option("--servers", type=click.IntRange(0), help="Pods that answer requests; default none.")
@debug_option
def kubernetes(recipe: str, overrides: tuple[str, ...], **asked: Any) -> None:
    """Print manifests for Kubernetes: shards that keep running, and a job that trains RECIPE.

    If the recipe has `cluster.launcher: ray`, a RayJob for KubeRay, with a pod for every process. With
    --servers, also a Deployment of servers that follow what the run publishes.

    Their head says how to use them. Nothing is started and no cluster is asked.
    """
    from satrap import deploy

    click.echo(deploy.kubernetes(*_asked(recipe, overrides, asked)), nl=False)


@deploy.command()
@_with((*_COMMON, *_TRAINING))
@click.option("--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="A new folder.")
@debug_option
def helm(recipe: str, overrides: tuple[str, ...], output: Path, **asked: Any) -> None:
    """Write a Helm chart: the objects of `satrap deploy kubernetes`, with values for image and sizes."""
    from satrap import deploy
    from satrap.errors import ConfigError

    loaded, request = _asked(recipe, overrides, asked)
    files = deploy.helm(loaded, request)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError("the output folder is not empty", where=str(output), fix="choose another --output")
    for name, text in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    click.echo(f"{output}: helm install {request.name} {output}")


@deploy.command()
@_with((*_COMMON, *_SERVERS))
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="How many pods.")
@debug_option
def kserve(recipe: str, overrides: tuple[str, ...], **asked: Any) -> None:
    """Print an InferenceService for KServe: servers that follow what the run of RECIPE publishes.

    They speak the Open Inference Protocol, version 2, and read the run folder from its volume, NAME-run.
    """
    from satrap import deploy

    click.echo(deploy.kserve(*_asked(recipe, overrides, asked)), nl=False)


@deploy.command(name="ray-serve")
@click.argument("run", metavar="DIR")
@click.option("--replicas", type=click.IntRange(1), help="Processes, each with all rows; default 2.")
@click.option("--name", help="Of the model, in answers. Default: the name of the folder.")
@click.option("--listen", metavar="HOST:PORT", help="Of Ray's proxies; default 127.0.0.1:8000.")
@click.option("--key", metavar="FILE", help="Key that clients must send, as all nodes see it.")
@click.option("--cpu", type=click.FloatRange(0, min_open=True), help="Cores of a replica; default 2.")
@click.option(
    "--memory", callback=byte_size, metavar="SIZE", help="Of a replica. Default by embedding.memory, if set."
)
@click.option("--follow/--no-follow", default=None, help="Serve each new version. Default: if it publishes.")
@debug_option
def ray_serve(**asked: Any) -> None:
    """Print the file of an application of Ray Serve that serves the run in folder DIR.

    All nodes must see DIR. Each replica follows the run by itself.
    """
    from satrap import deploy

    given = {name: value for name, value in asked.items() if value is not None}
    click.echo(deploy.ray_serve(deploy.RayServing(**given)), nl=False)


@deploy.command()
@debug_option
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON to import: throughput, staleness, latency, memory, servers.

    It needs a Prometheus that reads the metrics of runs, see docs/metrics.md.
    """
    import json

    from satrap import deploy

    click.echo(json.dumps(deploy.dashboard(), indent=2))


@deploy.command()
@debug_option
def alerts() -> None:
    """Print alert rules for Prometheus, as YAML: what an operator must act on."""
    from satrap import deploy
    from satrap.deploy.text import to_yaml

    click.echo(to_yaml(deploy.alerts()), nl=False)
