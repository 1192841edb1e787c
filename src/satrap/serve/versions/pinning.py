"""HTTP routes for the served version: an operator lists, pins, rolls back and releases versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from satrap.serve.http.errors import RequestError
from satrap.serve.operator import PATH
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.versions.follow import Follower


class Versions:
    """The routes of versions.

    Args:
        scorer: scorer with the served version.
        check: raises `RequestError` unless a request has the server's key.

    Attributes:
        follower: follows a run; None: the server does not follow a run.
        routes: the routes to add to the application.
    """

    def __init__(self, scorer: Scorer, check: Callable[[Request], None]) -> None:
        self._scorer, self._check = scorer, check
        self.follower: Follower | None = None
        self.routes = [
            Route(PATH, self._list),
            *(
                Route(f"{PATH}/{name}", partial(self._change, name), methods=["POST"])
                for name in ("pin", "rollback", "release")
            ),
        ]

    @property
    def following(self) -> bool:
        """Whether later versions will be served."""
        return self.follower is not None and not self.follower.pinned

    def _following(self) -> Follower:
        if self.follower is None:
            raise RequestError(
                409,
                "this server does not follow a run, so it has only one version",
                fix="start the server with satrap serve DIR --follow",
            )
        return self.follower

    async def _list(self, request: Request) -> Response:
        """Answer GET /v1/versions.

        The answer has the served step, whether it is pinned, the available steps, the earlier steps in
        memory, and the number of rollbacks.
        """
        self._check(request)
        follower = self._following()
        steps = await asyncio.to_thread(follower.steps)
        return self._told(
            follower,
            versions=steps,
            earlier=self._scorer.model.history.steps,
            rollbacks=follower.statistics.rollbacks,
        )

    async def _change(self, name: str, request: Request) -> Response:
        self._check(request)
        follower = self._following()
        if name == "rollback":
            await asyncio.to_thread(follower.rollback, _step(await request.body()))
        else:
            await asyncio.to_thread(getattr(follower, name))
        return self._told(follower)

    def _told(self, follower: Follower, **more: Any) -> Response:
        content = {"step": self._scorer.model.step, "pinned": follower.pinned, **more}
        return Response(orjson.dumps(content), media_type="application/json")


def _step(body: bytes) -> int:
    """Return the step in the body of a rollback request."""
    try:
        step = orjson.loads(body)["step"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        step = None
    if type(step) is not int or step < 0:
        raise RequestError(422, "the body has no valid step", fix='send {"step": NUMBER}, 0 or more')
    return step
