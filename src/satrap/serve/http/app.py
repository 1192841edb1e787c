"""The routes of a server, as an ASGI application."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from time import perf_counter, time
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from satrap.config.keys.serving import ServingKeys
from satrap.errors import SatrapError, TrainingError, did_you_mean
from satrap.serve.http.call import AsgiCall, ClientGoneError, Receive, Reply, Send, header
from satrap.serve.http.errors import RequestError, status_of
from satrap.serve.http.refusals import Refusals
from satrap.serve.protocols import arrow, json, open_inference
from satrap.serve.protocols.open_inference import BINARY_KIND, HEADER_LENGTH
from satrap.serve.request_log import RequestLog
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import ScoredRequest, Scorer, check_step
from satrap.serve.scoring.signature import Signature
from satrap.serve.shadow import Shadow
from satrap.serve.versions.pinning import Versions

STEP = "Satrap-Step"
"""Response header: the training step of the rows and network that computed the answer."""
REQUEST_ID = "Satrap-Request-Id"
"""Header of a request and its answer: the request's name in the log, from the client or generated here."""
TIMING = "Server-Timing"
"""Response header: milliseconds by stage, as in the W3C recommendation of the same name."""
DEADLINE = "Satrap-Deadline-Ms"
"""Request header: how many milliseconds the request may wait to be scored."""

VECTORS = "/v1/vectors/{tower}"
"""Path of the vectors of a tower."""

Endpoint = Callable[[Any, Receive, Send], Awaitable[None]]
"""An ASGI application."""

_CONTENT_TYPE, _DEADLINE = b"content-type", DEADLINE.lower().encode()
_HEADER_LENGTH, _REQUEST_ID = HEADER_LENGTH.lower().encode(), REQUEST_ID.lower().encode()


class Application:
    """Answers requests with the scores of a `Scorer`; `asgi` is the ASGI application.

    Args:
        scorer: computes the scores.
        limits: limits on requests.
        secret: the key that clients must send as `Authorization: Bearer SECRET`; None: no key.

    Attributes:
        draining: the server still answers new requests, but reports that it is not ready.
        seconds: event loop time by stage: "parse" and "write".
        answers: number of answers by HTTP status.
        versions: answers requests about versions, once it has a follower.
        log: log of the answers; None: no log.
        shadow: receives each request after its answer; None: no shadow.
    """

    def __init__(self, scorer: Scorer, limits: ServingKeys, *, secret: bytes | None = None) -> None:
        self._scorer, self._limits, self._secret = scorer, limits, secret
        self._refusals = Refusals()
        self.draining = False
        self.seconds = {"parse": 0.0, "write": 0.0}
        self.answers: dict[str, int] = {}
        self.log: RequestLog | None = None
        self.versions = Versions(scorer, self._check_key)
        self.shadow: Shadow | None = None
        model = "/v2/models/{name}"
        score, infer = self._endpoint(self._score), self._endpoint(self._infer)
        self._hot = {"/v1/score": score}
        self._others = Starlette(
            routes=[
                *(Route(path, _Asgi(score), methods=["POST"]) for path in ("/v1/score", VECTORS)),
                *(
                    Route(f"{path}/infer", _Asgi(infer), methods=["POST"])
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

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request of an ASGI server."""
        hot = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (self._others if hot is None else hot)(scope, receive, send)

    def _endpoint(self, answer: Callable[[AsgiCall], Awaitable[Reply]]) -> Endpoint:
        async def endpoint(scope: Any, receive: Receive, send: Send) -> None:
            call = AsgiCall(scope, receive)
            try:
                reply = await answer(call)
            except ClientGoneError:
                return
            except Exception as error:
                await self._defect(error).send(send)
                raise
            if 400 <= reply.status < 500:
                await self._refusals.wait(perf_counter() - call.begun)
            await reply.send(send)

        return endpoint

    @property
    def busy(self) -> str:
        """Why the server is not ready; empty if it is."""
        return "the server is shutting down" if self.draining else self._scorer.model.trouble()

    async def _score(self, call: AsgiCall) -> Reply:
        """Answer POST /v1/score, or `VECTORS`."""
        try:
            return await self._answer(call, self._read_v1, self._write_v1)
        except SatrapError as error:
            return self._failed(error, json.write_error(error))

    def _read_v1(self, call: AsgiCall, body: bytes) -> Any:
        protocol, model = arrow if _kind(call) == arrow.KIND else json, self._scorer.model
        if not call.params:
            return protocol.read(body, model, max_items=self._limits.max_items), protocol
        if (tower := call.params["tower"]) not in model.towers:
            raise _unknown_tower(tower, model)
        request = protocol.read(body, model.towers[tower], max_items=self._limits.max_items)
        return replace(request, tower=tower), protocol

    def _write_v1(self, answer: ScoredRequest, protocol: Any) -> tuple[bytes, str, list[tuple[bytes, bytes]]]:
        return protocol.write(answer), protocol.KIND, []

    async def _infer(self, call: AsgiCall) -> Reply:
        """Answer an inference request of the Open Inference Protocol."""
        try:
            self._named(call.params["name"])
            return await self._answer(call, self._read_v2, self._write_v2)
        except SatrapError as error:
            return self._failed(error, open_inference.write_error(error))

    def _read_v2(self, call: AsgiCall, body: bytes) -> Any:
        model, tower = self._named(call.params["name"])
        request, tensors = open_inference.read(
            body, call.header(_HEADER_LENGTH), model, max_items=self._limits.max_items
        )
        return replace(request, step=_asked_step(call.params), tower=tower), tensors

    def _write_v2(self, answer: ScoredRequest, tensors: Any) -> tuple[bytes, str, list[tuple[bytes, bytes]]]:
        body, length = open_inference.write(answer, tensors)
        if length is None:
            return body, json.KIND, []
        return body, BINARY_KIND, [header(HEADER_LENGTH, str(length))]

    async def _answer(
        self,
        call: AsgiCall,
        read: Callable[[AsgiCall, bytes], Any],
        write: Callable[[ScoredRequest, Any], tuple[bytes, str, list[tuple[bytes, bytes]]]],
    ) -> Reply:
        if self._secret is not None:
            self._check_secret(call.header(b"authorization") or "")
        seconds = self._deadline(call.header(_DEADLINE))
        body = await call.body(self._limits.max_bytes)
        start = perf_counter()
        request, form = read(call, body)
        parse = perf_counter() - start
        self.seconds["parse"] += parse
        answer = await call.unless_gone(self._scorer.score(request, seconds=seconds))
        start = perf_counter()
        written, kind, headers = write(answer, form)
        headers.append(header(STEP, str(answer.step)))
        scored = request.tower is None
        if scored and self.log is not None and (name := self.log.add(request, answer, _request_id(call))):
            headers.append(header(REQUEST_ID, name))
        took = perf_counter() - start
        self.seconds["write"] += took
        headers.append(header(TIMING, _timing({"parse": parse, **answer.seconds, "write": took})))
        reply = Reply(written, kind, headers=headers)
        if scored and self.shadow is not None:  # called after the answer has been sent
            kind = "" if call.params else _kind(call) or json.KIND
            kind = arrow.KIND if kind == arrow.KIND else kind and json.KIND
            reply.after = partial(self.shadow.offer, request, body, kind, answer)
        self._count(200)
        return reply

    def _count(self, status: int) -> None:
        self.answers[str(status)] = self.answers.get(str(status), 0) + 1

    def _failed(self, error: SatrapError, body: bytes) -> Reply:
        status = status_of(error)
        self._count(status)
        headers = error.headers if isinstance(error, RequestError) else {}
        return Reply(body, json.KIND, status, [header(*pair) for pair in headers.items()])

    async def _refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, SatrapError)
        return _response(self._failed(error, json.write_error(error)))

    async def _internal(self, _: Request, error: Exception) -> Response:
        return _response(self._defect(error))

    def _defect(self, error: Exception) -> Reply:
        """Report a bug in satrap or in the model; the traceback is in the server's log."""
        what = f"internal error: {type(error).__name__}"
        return self._failed(failed := TrainingError(what), json.write_error(failed))

    def _check_key(self, request: Request) -> None:
        self._check_secret(request.headers.get("Authorization", ""))

    def _check_secret(self, given: str) -> None:
        """Raise `RequestError` if the server has a key and the request's header does not match it."""
        if self._secret is None:
            return
        if not hmac.compare_digest(given.encode("latin-1"), b"Bearer " + self._secret):
            raise RequestError(
                401,
                "the key of the request is wrong" if given else "the request has no key",
                fix="send the header Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _deadline(self, text: str | None) -> float:
        """Return how many seconds a request may wait."""
        if text is None:
            return self._limits.deadline
        try:
            seconds = float(text) / 1000
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise RequestError(
                400,
                f"{text[:40]!r} is not a number of milliseconds",
                where=DEADLINE,
                fix="send a number greater than 0",
            )
        return min(seconds, self._limits.deadline)

    def _named(self, name: str) -> tuple[Signature, str | None]:
        """Return the signature with a name, and its tower; None: scores."""
        model = self._scorer.model
        every: dict[str, tuple[Signature, str | None]] = {model.name: (model, None)}
        every |= {served.name: (served, tower) for tower, served in model.towers.items()}
        if name not in every:
            names = " or ".join(map(repr, every))
            raise RequestError(404, f"model {name[:60]!r} is not served", fix=f"use the model name {names}")
        return every[name]

    async def _live(self, _: Request) -> Response:
        return PlainTextResponse("live")

    @property
    def stale(self) -> str:
        """Why the served version is too old; empty if it is recent enough."""
        age, most = time() - self._scorer.model.published, self._limits.max_staleness
        if most is None or age <= most or not self.versions.following:
            return ""
        return f"stale: step {self._scorer.model.step} was published {age:.0f} s ago, more than {most:g} s"

    async def _ready(self, request: Request) -> Response:
        """Report whether the server is ready; a stale server counts as ready, except with `?fresh`."""
        if self.busy:
            return PlainTextResponse(self.busy, 503)
        fresh = "fresh" in request.query_params
        return PlainTextResponse(self.stale or "ready", 503 if self.stale and fresh else 200)

    async def _describe(self, request: Request) -> Response:
        """Answer GET /v1/model: the columns of requests and the predictions of an answer."""
        self._check_key(request)
        model = self._scorer.model
        towers = model.towers
        return _json(
            {
                "model": model.name,
                "step": model.step,
                "precision": model.precision,
                "columns": model.kinds(),
                "predictions": model.outputs,
                **({"towers": {tower: served.kinds() for tower, served in towers.items()}} if towers else {}),
                "limits": {"items": self._limits.max_items, "bytes": self._limits.max_bytes},
            }
        )

    async def _server_metadata(self, _: Request) -> Response:
        return _json(open_inference.server_metadata(version("satrap")))

    async def _model_metadata(self, request: Request) -> Response:
        self._check_key(request)
        model, _ = self._named(request.path_params["name"])
        check_step(_asked_step(request.path_params), self._scorer.model)
        return _json(open_inference.model_metadata(model, self._scorer.model.step))

    async def _model_ready(self, request: Request) -> Response:
        self._named(request.path_params["name"])
        check_step(_asked_step(request.path_params), self._scorer.model)
        return await self._ready(request)


class _Asgi:
    """Makes a function an ASGI application that Starlette calls without a wrapper."""

    def __init__(self, call: Endpoint) -> None:
        self._call = call

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._call(scope, receive, send)


def _response(reply: Reply) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, media_type=reply.kind)


def _unknown_tower(tower: str, model: ServedModel) -> RequestError:
    towers = [*model.towers]
    if not towers:
        return RequestError(
            404,
            f"model {model.name!r} has no vectors",
            why="it scores user and item together",
            fix="serve a model of vectors, such as two_tower or sasrec",
        )
    return RequestError(
        404,
        f"tower {tower[:60]!r} is unknown",
        fix=f"{did_you_mean(tower, towers)}towers: {', '.join(towers)}",
    )


def _asked_step(params: Mapping[str, str]) -> int | str | None:
    """Return the training step in the path of a request, possibly not a number; None: any step."""
    step = params.get("step")
    return int(step) if step is not None and step.isdecimal() and len(step) < 20 else step


def _request_id(call: AsgiCall) -> str:
    """Return the client's name for the request if it is short, printable ASCII; else an empty string."""
    name = call.header(_REQUEST_ID) or ""
    return name if len(name) <= 128 and name.isascii() and name.isprintable() else ""


def _timing(seconds: Mapping[str, float]) -> str:
    """Return the value of the header `TIMING`."""
    return ", ".join(f"{stage};dur={1000 * took:.3f}" for stage, took in seconds.items())


def _kind(call: AsgiCall) -> str:
    """Return the media type of a body."""
    return (call.header(_CONTENT_TYPE) or "").partition(";")[0].strip().lower()


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type=json.KIND)
