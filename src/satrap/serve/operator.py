"""Requests of an operator to a server, from the command line."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from satrap.errors import ConfigError
from satrap.rpc import read_key

PATH = "/v1/versions"
"""GET lists the versions; POST to its subpaths `/pin`, `/rollback` and `/release` changes the served one."""
ANSWER_SECONDS = 600.0
"""How long to wait for an answer: a rollback may load a whole model."""


def ask(url: str, action: str, key: Path | None, body: dict[str, Any]) -> dict[str, Any]:
    """Send a server a request about its versions; return its answer.

    Args:
        url: server URL, such as http://127.0.0.1:8000.
        action: "pin", "rollback" or "release"; "" lists the versions.
        key: file with the server's key; None: the server has no key.
        body: request body.

    Raises:
        ConfigError: the server cannot be reached, or rejects the request.
    """
    return call(url, f"{PATH}/{action}".rstrip("/"), key, body if action else None)


def call(url: str, path: str, key: Path | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a server's answer to a GET request, or to a POST request if there is a body; see `ask`."""
    place = f"{base_of(url)}{path}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(place, data, {"Content-Type": "application/json", **authorization(key)})
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:
            content: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise _refused(error, place) from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"the server does not answer: {reason}", where=place, fix="use the URL that satrap serve printed"
        ) from error
    return content


def base_of(url: str) -> str:
    """Return a server URL without a trailing slash, and with http:// if it has no scheme."""
    base = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is not a server URL", fix="give a URL such as http://127.0.0.1:8000")
    return base


def authorization(key: Path | None) -> dict[str, str]:
    """Return the authorization header with the key in a file; empty if `key` is None."""
    if key is None:
        return {}
    read_key(key)
    return {"Authorization": f"Bearer {key.read_text(encoding='utf-8').strip()}"}


def _refused(error: HTTPError, place: str) -> ConfigError:
    """Return the error that a server sent."""
    try:
        parts = json.load(error)["error"]
        return ConfigError(
            parts["what"], where=parts.get("where", place), why=parts.get("why", ""), fix=parts.get("fix", "")
        )
    except (ValueError, KeyError, TypeError):
        return ConfigError(f"the server answered with HTTP status {error.code}", where=place)
