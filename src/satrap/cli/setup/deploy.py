"""`satrap deploy`: manifests for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from satrap.cli.options import F, byte_size, debug_option, set_option

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.tools.deploy import DeployRequest


def _label(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        labels[key] = text
    return labels


_COMMON = (
    click.argument("recipe"),
    set_option,
    click.option("--image", metavar="IMAGE", help="Container image; default satrap:VERSION."),
    click.option("--name", help="Prefix of the names of all objects; default the recipe's name."),
    click.option("--namespace", help="Namespace of all objects; default the current namespace of kubectl."),
    click.option(
        "--env-secret",
        "env_secrets",
        multiple=True,
        metavar="NAME",
        help="Secret with environment variables.",
    ),
    click.option("--service-account", metavar="NAME", help="Service account of all pods."),
)
_TRAINING = (
    click.option("--data-claim", metavar="CLAIM", help="Volume with the data at the recipe's paths."),
    click.option(
        "--storage", callback=byte_size, metavar="SIZE", help="Size of the run folder; default 20GiB."
    ),
    click.option(
        "--storage-class", metavar="NAME", help="Storage class of all volumes; default the cluster's."
    ),
    click.option("--shared", is_flag=True, help="Shards also mount the run folder (ReadWriteMany)."),
    click.option(
        "--journal",
        callback=byte_size,
        metavar="SIZE",
        help="Size of a shard's journal; default twice its memory.",
    ),
    click.option(
        "--shard-memory",
        callback=byte_size,
        metavar="SIZE",
        help="Memory of a shard; default from embedding.memory and cluster.shards.",
    ),
    click.option(
        "--worker-memory",
        callback=byte_size,
        metavar="SIZE",
        help="Memory of a worker in addition to rows; default 4GiB.",
    ),
    click.option(
        "--shard-cpu", type=click.FloatRange(0, min_open=True), help="CPU cores of a shard; default 2."
    ),
    click.option("--worker-cpu", type=click.IntRange(1), help="CPU cores of a worker; default 4."),
    click.option(
        "--shard-nodes",
        multiple=True,
        callback=_label,
        metavar="KEY=VALUE",
        help="Node label for shards; may be repeated.",
    ),
    click.option(
        "--worker-nodes",
        multiple=True,
        callback=_label,
        metavar="KEY=VALUE",
        help="Node label for workers; may be repeated.",
    ),
    click.option("--one-zone", is_flag=True, help="Place all pods in one zone."),
    click.option("--queue", metavar="NAME", help="Kueue's LocalQueue."),
    click.option(
        "--ray-version",
        metavar="VERSION",
        help="Ray version of the image, with cluster.launcher: ray; default 2.60.0.",
    ),
    click.option(
        "--key-secret", metavar="NAME", help="Secret that holds the key as cluster.key; default NAME-key."
    ),
)


_SERVERS = (
    click.option(
        "--server-memory",
        callback=byte_size,
        metavar="SIZE",
        help="Memory of a server; default from embedding.memory.",
    ),
    click.option(
        "--server-cpu", type=click.FloatRange(0, min_open=True), help="CPU cores of a server; default 2."
    ),
    click.option(
        "--drain",
        type=click.IntRange(0),
        metavar="SECONDS",
        help="How long a server keeps answering after SIGTERM; default 15.",
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


def _asked(recipe: str, overrides: Sequence[str], given: Mapping[str, Any]) -> tuple[Recipe, DeployRequest]:
    from importlib.metadata import version

    from satrap.config import load
    from satrap.tools.deploy import DeployRequest
    from satrap.tools.deploy.request import name_of

    loaded = load(recipe, overrides)
    cuda = loaded.sections.training.device.startswith("cuda")
    defaults = {"name": name_of(loaded.name), "image": f"satrap:{version('satrap')}{'-cuda' * cuda}"}
    return loaded, DeployRequest(
        **(defaults | {name: value for name, value in given.items() if value is not None})
    )


@click.group()
def deploy() -> None:
    """Write manifests that run a recipe on a cluster."""


@deploy.command()
@_with((*_COMMON, *_TRAINING, *_SERVERS))
@click.option("--servers", type=click.IntRange(0), help="Number of pods that answer requests; default none.")
@debug_option
def kubernetes(recipe: str, overrides: tuple[str, ...], **asked: Any) -> None:
    """Print manifests for Kubernetes: a job that trains RECIPE, and permanent shards.

    With `cluster.launcher: ray` in the recipe, a RayJob for KubeRay with a pod per process. With --servers,
    also a Deployment of servers that follow the run's feed.

    Comments at the top of the output explain its use. The command starts nothing and contacts no cluster.
    """
    from satrap.tools import deploy

    click.echo(deploy.kubernetes(*_asked(recipe, overrides, asked)), nl=False)


@deploy.command()
@_with((*_COMMON, *_TRAINING))
@click.option("--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="A new folder.")
@debug_option
def helm(recipe: str, overrides: tuple[str, ...], output: Path, **asked: Any) -> None:
    """Write a Helm chart: the objects of `satrap deploy kubernetes`, with values for image and sizes."""
    from satrap.errors import ConfigError
    from satrap.tools import deploy

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
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Number of pods.")
@debug_option
def kserve(recipe: str, overrides: tuple[str, ...], **asked: Any) -> None:
    """Print an InferenceService for KServe: servers that follow the feed of RECIPE's run.

    The servers implement the Open Inference Protocol, version 2, and read the run folder from the volume
    NAME-run.
    """
    from satrap.tools import deploy

    click.echo(deploy.kserve(*_asked(recipe, overrides, asked)), nl=False)


@deploy.command(name="ray-serve")
@click.argument("run", metavar="DIR")
@click.option(
    "--replicas", type=click.IntRange(1), help="Number of processes, each with all rows; default 2."
)
@click.option("--name", help="Name of the model in responses; default the name of the folder.")
@click.option("--listen", metavar="HOST:PORT", help="Address of Ray's proxies; default 127.0.0.1:8000.")
@click.option(
    "--key", metavar="FILE", help="File with the key that clients must send, at the same path on all nodes."
)
@click.option("--cpu", type=click.FloatRange(0, min_open=True), help="CPU cores of a replica; default 2.")
@click.option(
    "--memory",
    callback=byte_size,
    metavar="SIZE",
    help="Memory of a replica; default from embedding.memory, if set.",
)
@click.option(
    "--follow/--no-follow", default=None, help="Serve each new version; default: if the run publishes."
)
@debug_option
def ray_serve(**asked: Any) -> None:
    """Print a Ray Serve application file that serves the run in folder DIR.

    All nodes must have access to DIR. Each replica follows the run independently.
    """
    from satrap.tools import deploy

    settings = {name: value for name, value in asked.items() if value is not None}
    click.echo(deploy.ray_serve(deploy.RayServing(**settings)), nl=False)


@deploy.command()
@debug_option
def dashboard() -> None:
    """Print a Grafana dashboard, as JSON to import: throughput, staleness, latency, memory, servers.

    It needs a Prometheus that scrapes the runs, see docs/metrics.md.
    """
    import json

    from satrap.tools import deploy

    click.echo(json.dumps(deploy.dashboard(), indent=2))


@deploy.command()
@debug_option
def alerts() -> None:
    """Print alert rules for Prometheus, as YAML."""
    from satrap.tools import deploy
    from satrap.tools.deploy.text import to_yaml

    click.echo(to_yaml(deploy.alerts()), nl=False)
