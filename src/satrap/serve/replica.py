"""A run as an application of Ray Serve: each replica has all rows, scores, and follows the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.errors import ConfigError, did_you_mean
from satrap.launch.folder import RunFolder
from satrap.serve.app import Application
from satrap.serve.run import Loaded, Options
from satrap.serve.scorer import Scorer

DEPLOYMENT = "satrap"
"""Name of the deployment; a file of Ray Serve says how many replicas it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the file of an application says about a replica.

    Args:
        run: the run folder, as all nodes see it.
        name: of the model in answers; None: the name of the folder.
        key: file with the key that clients must send, as all nodes see it; None: none is needed.
        follow: serve each new version of the run.
        trust: run the code in the folder of another user.
    """

    run: str
    name: str | None = None
    key: str | None = None
    follow: bool = False
    trust: bool = False


def application(arguments: Mapping[str, Any]) -> Any:
    """Return the application of a run, for the `import_path` of a file of Ray Serve.

    Args:
        arguments: those of `Arguments`.

    Raises:
        ConfigError: an argument is missing or unknown.
    """
    from ray import serve

    asked = _checked(arguments)
    deployment: Any = serve.deployment(serve.ingress(lambda: Replica(asked))(), name=DEPLOYMENT)
    return deployment.bind()


class Replica:
    """A server of scores without sockets: an ASGI application that ends with its lifespan.

    The rows are loaded when it is made, so a replica is ready once it exists. It follows the run in a thread
    of its own: no new version needs a call from outside, and none takes it out of service.

    Args:
        arguments: what it serves.

    Raises:
        ConfigError: as `satrap serve`.
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
        """Answer a request, or begin and end with the lifespan."""
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
            known = Arguments.__slots__
            raise ConfigError(
                f"a replica has no argument {name!r}",
                fix=f"{did_you_mean(name, known)}arguments: {', '.join(known)}",
            )
    if "run" not in arguments:
        raise ConfigError("a replica needs the argument run", fix="give the run folder: run: /shared/runs/x")
    return Arguments(**arguments)
