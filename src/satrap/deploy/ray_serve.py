"""The file of an application of Ray Serve that serves a run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from satrap.config import load
from satrap.config.tables import memory_of
from satrap.deploy.sizes import server_bytes
from satrap.deploy.text import to_yaml
from satrap.errors import ConfigError
from satrap.rpc import is_loopback, split_address

LONGEST_WAIT = 30
"""Seconds in which a replica that is to end finishes what has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServing:
    """What a user asks of `satrap deploy ray-serve`.

    Args:
        run: the run folder, as all nodes see it.
        name: of the model in answers; None: the name of the folder.
        replicas: processes that each hold all rows.
        cpu: cores that each reserves.
        memory: bytes that each reserves; None: as for a server in Kubernetes, nothing without
            `embedding.memory`.
        listen: HOST:PORT of Ray's proxies.
        key: file with the key that clients must send, as all nodes see it.
        follow: serve each new version of the run; None: if its recipe publishes.
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
    """Return YAML for `serve run` and `serve deploy`; its head says how to use it.

    Raises:
        ConfigError: the folder holds no run, or clients of other machines could ask without a key.
    """
    run = Path(asked.run).absolute()
    recipe = run / "recipe.yaml"
    if not recipe.is_file():
        raise ConfigError(
            "not a run folder: it has no recipe.yaml",
            where=str(asked.run),
            fix="give the folder that satrap train printed at its end",
        )
    host, port = split_address(asked.listen)
    if asked.key is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no key",
            where="--listen",
            why="whoever reaches Ray's proxies could ask",
            fix="write a key with satrap key FILE and give it with --key FILE, or listen on 127.0.0.1",
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
        # What waits is joined in the replica, which also refuses what is too much.
        "max_ongoing_requests": sections.serving.max_queue,
        "graceful_shutdown_timeout_s": LONGEST_WAIT,
        "ray_actor_options": {"num_cpus": asked.cpu, **({"memory": memory} if memory else {})},
    }
    application = {
        "name": arguments["name"],
        "route_prefix": "/",
        "import_path": "satrap.serve.replica:application",
        "args": arguments | {"follow": follow},
        "logging_config": {"enable_access_log": False},  # a line for each request
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
        "start:   serve deploy FILE, on a Ray cluster that runs",
        f"scores:  http://{asked.listen}/v1/score; every node must see the folder of the run",
    )
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + to_yaml(made)
