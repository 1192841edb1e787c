"""A run as a Ray Serve application: each replica holds all rows, computes scores and follows the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.errors import ConfigError, did_you_mean
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.http.app import Application
from satrap.serve.run import Loaded, Options
from satrap.serve.scoring.scorer import Scorer

DEPLOYMENT = "satrap"
"""Name of the deployment; the number of its replicas is set in the Ray Serve config file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Arguments of a replica in the application's config file.

    Args:
        run: path of the run folder, the same on all nodes.
        name: name of the model in answers; None: the name of the folder.
        key: file with the key that clients must send, the same path on all nodes; None: no key is needed.
        follow: serve each new version of the run.
        trust: run the code in the folder even if another user owns it.
    """

    run: str
    name: str | None = None
    key: str | None = None
    follow: bool = False
    trust: bool = False


def application(arguments: Mapping[str, Any]) -> Any:
    """Return the application of a run, for `import_path` in a Ray Serve config file.

    Args:
        arguments: the arguments of `Arguments`, by name.

    Raises:
        ConfigError: an argument is missing or unknown.
    """
    from ray import serve

    checked = _checked(arguments)
    deployment: Any = serve.deployment(serve.ingress(lambda: Replica(checked))(), name=DEPLOYMENT)
    return deployment.bind()


class Replica:
    """A score server without sockets: an ASGI application that closes at the end of its lifespan.

    The constructor loads the rows, so a replica is ready once it exists. A thread follows the run: new
    versions need no call from outside and do not take the replica out of service.

    Args:
        arguments: arguments of the replica.

    Raises:
        ConfigError: the errors of `satrap serve`.
    """

    def __init__(self, arguments: Arguments) -> None:
        options = Options(
            listen="",
            key=None if arguments.key is None else Path(arguments.key),
            name=arguments.name,
            trust=arguments.trust,
            follow=arguments.follow,
        )
        loaded = Loaded(RunFolder.open(arguments.run), options, (), print)
        with ExitStack() as stack:
            scorer = stack.enter_context(Scorer(loaded.model(), max_queue=loaded.limits.max_queue))
            self._application = Application(scorer, loaded.limits, secret=loaded.secret)
            stack.enter_context(loaded.attended(scorer, self._application))
            self._stack = stack.pop_all()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or handle startup and shutdown of the lifespan."""
        if scope["type"] != "lifespan":
            await self._application.asgi(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._stack.close()
        await send({"type": "lifespan.shutdown.complete"})


def _checked(arguments: Mapping[str, Any]) -> Arguments:
    for name in arguments:
        if name not in Arguments.__slots__:
            allowed = Arguments.__slots__
            raise ConfigError(
                f"a replica has no argument {name!r}",
                fix=f"{did_you_mean(name, allowed)}use one of {', '.join(allowed)}",
            )
    if "run" not in arguments:
        raise ConfigError("a replica needs the argument run", fix="name the run folder: run: /shared/runs/x")
    return Arguments(**arguments)
