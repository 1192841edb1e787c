"""Requests and answers in JSON: one context and many items, as columns or as a list of objects."""

from __future__ import annotations

from typing import Any

import orjson

from satrap.errors import SatrapError
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.protocols.json_numbers import LEAST_BYTES, scanned
from satrap.serve.scoring.columns import to_request
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.serve.scoring.signature import Signature

KIND = "application/json"
KEYS = ("context", "items", "step")


def loads(body: bytes) -> Any:
    """Return the value of a JSON text; raise `RequestError` if it is not JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            400,
            f"the body is not JSON: {error.msg}",
            where=f"line {error.lineno}, column {error.colno}",
            fix="send JSON in UTF-8, with integers of at most 64 bits and null instead of NaN",
        ) from error


def read(body: bytes, model: Signature, *, max_items: int) -> ScoreRequest:
    """Return the rows of a request.

    The body is an object. `items` has a list of values for each column, one per item, or it is a list of
    objects. `context` has the columns whose value all items share. `step` is the training step that must
    compute the scores.

    Raises:
        RequestError, DataError: see `to_request`; also if the body does not have this form.
    """
    if len(body) >= LEAST_BYTES and (columns := scanned(body)) is not None:
        return to_request(model, *columns, max_items=max_items)
    request = loads(body)
    if not isinstance(request, dict) or "items" not in request:
        raise RequestError(
            422, "the body has no items", fix='send {"context": {...}, "items": {"column": [value, ...]}}'
        )
    for key in request:
        if key not in KEYS:
            raise RequestError(422, f"key {key!r} is unknown", fix=f"use only the keys {', '.join(KEYS)}")
    context = request.get("context")
    if not isinstance(context, dict | None):
        raise RequestError(
            422, "the context is not an object", where="context", fix="send an object: column -> value"
        )
    rows = to_request(model, context or {}, request["items"], max_items=max_items)
    return ScoreRequest(rows.size, rows.context, rows.items, request.get("step"))


def write(answer: ScoredRequest) -> bytes:
    """Return the scores as JSON: the model's name and step, and one list of values for each prediction."""
    content = {"model": answer.model.name, "step": answer.step, "predictions": answer.by_output()}
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def write_error(error: SatrapError) -> bytes:
    """Return an error as JSON: what happened, where, why it matters, what to do."""
    parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
    return orjson.dumps({"error": {name: text for name, text in parts.items() if text}})
