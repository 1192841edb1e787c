"""The routes of a server, as an ASGI application."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from time import perf_counter, time
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from satrap.config.serving import Serving
from satrap.errors import SatrapError, TrainingError
from satrap.serve.errors import RequestError, status_of
from satrap.serve.protocols import arrow, json, open_inference
from satrap.serve.protocols.open_inference import BINARY_KIND, HEADER_LENGTH
from satrap.serve.request_log import RequestLog
from satrap.serve.scorer import Answer, Scorer, check_step
from satrap.serve.shadow import Shadow
from satrap.serve.versions import Versions

STEP = "Satrap-Step"
"""Header of an answer: the training step whose rows and network gave it."""
REQUEST_ID = "Satrap-Request-Id"
"""Header of a request and its answer: its name in the log; the client's, or one made here."""
TIMING = "Server-Timing"
"""Header of an answer: milliseconds by stage, as in the W3C's recommendation of this name."""
DEADLINE = "Satrap-Deadline-Ms"
"""Header of a request: milliseconds it may wait to be scored."""

WATCH_SECONDS = 0.02
"""How long a request may wait for its answer before it is looked whether its client is still there."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has closed the connection."""


class Application:
    """Answers requests with the scores of a `Scorer`; `asgi` is the application.

    Args:
        scorer: scores.
        limits: of requests.
        secret: what clients must send as `Authorization: Bearer SECRET`; None: nothing.

    Attributes:
        draining: new requests are answered, but the server says that it is not ready.
        seconds: time of the event loop by stage: "parse" and "write".
        answers: how many answers had each HTTP status.
        versions: answers requests about versions, once it has a follower.
        log: where answers are written down; None: nowhere.
        shadow: is given each request that was answered; None: nothing is.
    """

    def __init__(self, scorer: Scorer, limits: Serving, *, secret: bytes | None = None) -> None:
        self._scorer, self._limits, self._secret = scorer, limits, secret
        self.draining = False
        self.seconds = {"parse": 0.0, "write": 0.0}
        self.answers: dict[str, int] = {}
        self.log: RequestLog | None = None
        self.versions = Versions(scorer, self._check_secret)
        self.shadow: Shadow | None = None
        model = "/v2/models/{name}"
        self.asgi = Starlette(
            routes=[
                Route("/v1/score", _Endpoint(self._score), methods=["POST"]),
                *(
                    Route(f"{path}/infer", _Endpoint(self._infer), methods=["POST"])
                    for path in (model, f"{model}/versions/{{step}}")
                ),
                *(Route(path, self._live) for path in ("/live", "/v2/health/live")),
                *(Route(path, self._ready) for path in ("/ready", "/v2/health/ready")),
                Route("/v1/model", self._describe),
                *self.versions.routes,
                Route("/v2", self._server_metadata),
                *(
                    route
                    for path in (model, f"{model}/versions/{{step}}")
                    for route in (
                        Route(path, self._model_metadata),
                        Route(f"{path}/ready", self._model_ready),
                    )
                ),
            ],
            exception_handlers={SatrapError: self._refused, Exception: self._internal},
        )

    @property
    def busy(self) -> str:
        """Why the server is not ready; empty if it is."""
        return "the server is about to end" if self.draining else self._scorer.model.trouble()

    async def _score(self, request: Request) -> Response:
        """Answer POST /v1/score."""
        try:
            return await self._answer(request, self._read_v1, self._write_v1)
        except SatrapError as error:
            return self._failed(error, json.write_error(error))

    def _read_v1(self, request: Request, body: bytes) -> Any:
        protocol = arrow if _kind(request) == arrow.KIND else json
        return protocol.read(body, self._scorer.model, max_items=self._limits.max_items), protocol

    def _write_v1(self, answer: Answer, protocol: Any) -> Response:
        return Response(protocol.write(answer), media_type=protocol.KIND)

    async def _infer(self, request: Request) -> Response:
        """Answer an inference request of the Open Inference Protocol."""
        try:
            self._check_model(request)
            return await self._answer(request, self._read_v2, self._write_v2)
        except SatrapError as error:
            return self._failed(error, open_inference.write_error(error))

    def _read_v2(self, request: Request, body: bytes) -> Any:
        length = request.headers.get(HEADER_LENGTH)
        asked, wanted = open_inference.read(
            body, length, self._scorer.model, max_items=self._limits.max_items
        )
        return replace(asked, step=self._asked_step(request)), wanted

    def _write_v2(self, answer: Answer, wanted: Any) -> Response:
        body, length = open_inference.write(answer, wanted)
        if length is None:
            return Response(body, media_type=json.KIND)
        return Response(body, headers={HEADER_LENGTH: str(length)}, media_type=BINARY_KIND)

    async def _answer(
        self,
        request: Request,
        read: Callable[[Request, bytes], Any],
        write: Callable[[Answer, Any], Response],
    ) -> Response:
        self._check_secret(request)
        seconds = self._deadline(request)
        body = await self._body(request)
        start = perf_counter()
        asked, wanted = read(request, body)
        parse = perf_counter() - start
        self.seconds["parse"] += parse
        answer = await _unless_gone(request, self._scorer.score(asked, seconds=seconds))
        start = perf_counter()
        response = write(answer, wanted)
        response.headers[STEP] = str(answer.step)
        if self.log is not None and (name := self.log.add(asked, answer, _request_id(request))):
            response.headers[REQUEST_ID] = name
        took = perf_counter() - start
        self.seconds["write"] += took
        response.headers[TIMING] = _timing({"parse": parse, **answer.seconds, "write": took})
        if self.shadow is not None:  # it comes after the answer has been sent
            kind = "" if request.path_params else _kind(request) or json.KIND
            kind = arrow.KIND if kind == arrow.KIND else kind and json.KIND
            response.background = BackgroundTask(self.shadow.offer, asked, body, kind, answer)
        self._count(response.status_code)
        return response

    def _count(self, status: int) -> None:
        self.answers[str(status)] = self.answers.get(str(status), 0) + 1

    def _failed(self, error: SatrapError, body: bytes) -> Response:
        self._count(status_of(error))
        headers = error.headers if isinstance(error, RequestError) else None
        return Response(body, status_of(error), headers=headers, media_type=json.KIND)

    async def _refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, SatrapError)
        return self._failed(error, json.write_error(error))

    async def _internal(self, _: Request, error: Exception) -> Response:
        """Answer a defect of satrap or of the model; the server's log has the traceback."""
        what = f"internal error: {type(error).__name__}"
        return self._failed(failed := TrainingError(what), json.write_error(failed))

    def _check_secret(self, request: Request) -> None:
        if self._secret is None:
            return
        given = request.headers.get("Authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, b"Bearer " + self._secret):
            raise RequestError(
                401,
                "the key is missing or wrong" if given else "a key is needed",
                fix="send the header Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _deadline(self, request: Request) -> float:
        """Return the seconds that a request may wait."""
        text = request.headers.get(DEADLINE)
        if text is None:
            return self._limits.deadline
        try:
            seconds = float(text) / 1000
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise RequestError(
                400, f"{text[:40]!r} is not a number of milliseconds", where=DEADLINE, fix="send a number > 0"
            )
        return min(seconds, self._limits.deadline)

    async def _body(self, request: Request) -> bytes:
        most = self._limits.max_bytes
        length = request.headers.get("Content-Length", "")
        parts: list[bytes] = []
        size = int(length) if length.isdigit() and len(length) < 20 else 0
        more = True
        while more and size <= most:
            message = await request.receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            size = max(size, sum(map(len, parts)))
        if size > most:
            raise RequestError(
                413,
                f"the body has more than {most:,} bytes",
                fix="send several requests, or raise serving.max_bytes",
                headers={"Connection": "close"},
            )
        return b"".join(parts)

    def _check_model(self, request: Request) -> None:
        model, params = self._scorer.model, request.path_params
        if params["name"] != model.name:
            raise RequestError(
                404, f"model {params['name'][:60]!r} is not served", fix=f"ask for {model.name!r}"
            )

    async def _live(self, _: Request) -> Response:
        return PlainTextResponse("live")

    @property
    def stale(self) -> str:
        """Why a newer version should be there by now; empty if the served one is new enough."""
        age, most = time() - self._scorer.model.published, self._limits.max_staleness
        if most is None or age <= most or not self.versions.following:
            return ""
        return f"stale: step {self._scorer.model.step} was published {age:.0f} s ago, more than {most:g} s"

    async def _ready(self, request: Request) -> Response:
        """Answer whether to send requests here; a stale server is ready, unless `?fresh` is asked for."""
        if self.busy:
            return PlainTextResponse(self.busy, 503)
        fresh = "fresh" in request.query_params
        return PlainTextResponse(self.stale or "ready", 503 if self.stale and fresh else 200)

    async def _describe(self, request: Request) -> Response:
        """Answer GET /v1/model: what a request must have, and what an answer will have."""
        self._check_secret(request)
        model = self._scorer.model
        return _json(
            {
                "model": model.name,
                "step": model.step,
                "precision": model.precision,
                "columns": {name: model.kind_of(name) for name in model.columns},
                "predictions": model.outputs,
                "limits": {"items": self._limits.max_items, "bytes": self._limits.max_bytes},
            }
        )

    async def _server_metadata(self, _: Request) -> Response:
        return _json(open_inference.server_metadata(version("satrap")))

    def _asked_step(self, request: Request) -> int | str | None:
        """Return the training step in the path of a request, which may not be a number; None: any."""
        step: str | None = request.path_params.get("step")
        return int(step) if step is not None and step.isdecimal() and len(step) < 20 else step

    async def _model_metadata(self, request: Request) -> Response:
        self._check_secret(request)
        self._check_model(request)
        check_step(self._asked_step(request), self._scorer.model)
        return _json(open_inference.model_metadata(self._scorer.model))

    async def _model_ready(self, request: Request) -> Response:
        self._check_model(request)
        check_step(self._asked_step(request), self._scorer.model)
        return await self._ready(request)


class _Endpoint:
    """A handler as an ASGI application, which starlette calls without wrapping it."""

    def __init__(self, handle: Callable[[Request], Awaitable[Response]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            response = await self._handle(Request(scope, receive, send))
        except ClientGoneError:
            return
        await response(scope, receive, send)


async def _unless_gone(request: Request, answer: asyncio.Future[Answer]) -> Answer:
    """Return the answer; if the client leaves before, take the request back and raise `ClientGoneError`."""
    gone: list[asyncio.Future[Any]] = []

    def watch() -> None:
        gone.append(asyncio.ensure_future(request.receive()))
        gone[0].add_done_callback(lambda _: answer.cancel())

    # Nearly always the answer is there before: it is not worth a task that watches the connection.
    timer = answer.get_loop().call_later(WATCH_SECONDS, watch)
    try:
        return await answer
    except asyncio.CancelledError:
        if gone and gone[0].done() and not gone[0].cancelled():
            raise ClientGoneError from None
        raise
    finally:
        timer.cancel()
        answer.cancel()
        for each in gone:
            each.cancel()


def _request_id(request: Request) -> str:
    """Return the name that a client gave its request, if it is plain and short; else an empty one."""
    name = request.headers.get(REQUEST_ID, "")
    return name if len(name) <= 128 and name.isascii() and name.isprintable() else ""


def _timing(seconds: Mapping[str, float]) -> str:
    """Return the value of `TIMING`."""
    return ", ".join(f"{stage};dur={1000 * took:.3f}" for stage, took in seconds.items())


def _kind(request: Request) -> str:
    """Return the media type of a body."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type=json.KIND)
