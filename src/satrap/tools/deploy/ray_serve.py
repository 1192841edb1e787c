"""The file of a Ray Serve application that serves a run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from satrap.config import load
from satrap.config.checks.tables import memory_of
from satrap.errors import ConfigError
from satrap.rpc import is_loopback, split_address
from satrap.tools.deploy.sizes import server_bytes
from satrap.tools.deploy.text import to_yaml

LONGEST_WAIT = 30
"""Seconds that a replica has for finishing its requests before it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServing:
    """Settings of `satrap deploy ray-serve`.

    Args:
        run: the run folder, at the same path on all nodes.
        name: name of the model in responses; None: the name of the folder.
        replicas: number of processes, each with all rows.
        cpu: cores that each replica reserves.
        memory: bytes that each replica reserves; None: as for a server in Kubernetes, or nothing without
            `embedding.memory`.
        listen: HOST:PORT of Ray's proxies.
        key: file with the key that clients must send, at the same path on all nodes.
        follow: serve each new version of the run; None: if the recipe publishes.
    """

    run: str
    name: str | None = None
    replicas: int = 2
    cpu: float = 2.0
    memory: int | None = None
    listen: str = "127.0.0.1:8000"
    key: str | None = None
    follow: bool | None = None


def ray_serve(asked: RayServing) -> str:
    """Return YAML for `serve run` and `serve deploy`; comments at the top explain its use.

    Raises:
        ConfigError: the folder is not a run folder, or clients on other machines could connect without a key.
    """
    run = Path(asked.run).absolute()
    recipe = run / "recipe.yaml"
    if not recipe.is_file():
        raise ConfigError(
            "not a run folder: recipe.yaml is missing",
            where=str(asked.run),
            fix="give the folder that satrap train printed at its end",
        )
    host, port = split_address(asked.listen)
    if asked.key is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, but no key is given",
            where="--listen",
            why="every client that reaches Ray's proxies could send requests",
            fix="create a key with satrap key FILE and pass it with --key FILE, or listen on 127.0.0.1",
        )
    sections = load(recipe).sections
    memory = asked.memory
    if memory is None and memory_of(sections) is not None:
        memory = server_bytes(sections)
    arguments = {"run": str(run), "name": asked.name or run.name}
    if asked.key is not None:
        arguments["key"] = str(Path(asked.key).absolute())
    follow = sections.publish.active if asked.follow is None else asked.follow
    deployment = {
        "name": "satrap",
        "num_replicas": asked.replicas,
        # The replica batches waiting requests, and rejects requests beyond its limit.
        "max_ongoing_requests": sections.serving.max_queue,
        "graceful_shutdown_timeout_s": LONGEST_WAIT,
        "ray_actor_options": {"num_cpus": asked.cpu, **({"memory": memory} if memory else {})},
    }
    application = {
        "name": arguments["name"],
        "route_prefix": "/",
        "import_path": "satrap.serve.replica:application",
        "args": arguments | {"follow": follow},
        "logging_config": {"enable_access_log": False},  # it has a line per request
        "deployments": [deployment],
    }
    made = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [application],
    }
    head = (
        f"Made by satrap {version('satrap')}: satrap deploy ray-serve",
        "",
        "try it:  serve run FILE",
        "start:   serve deploy FILE, on a running Ray cluster",
        f"scores:  http://{asked.listen}/v1/score; every node must have access to the run folder",
    )
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + to_yaml(made)
