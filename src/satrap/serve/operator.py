"""What an operator asks a server from the command line."""

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
"""GET lists the versions; POST to `/pin`, `/rollback` and `/release` below it changes the served one."""
ANSWER_SECONDS = 600.0
"""How long to wait for an answer: going back may load a whole model."""


def ask(url: str, action: str, key: Path | None, body: dict[str, Any]) -> dict[str, Any]:
    """Ask a server about its versions; return its answer.

    Args:
        url: of the server, such as http://127.0.0.1:8000.
        action: "pin", "rollback" or "release"; "" lists the versions.
        key: file with the server's key; None: it has none.
        body: of the request.

    Raises:
        ConfigError: the server cannot be reached, or refuses.
    """
    return call(url, f"{PATH}/{action}".rstrip("/"), key, body if action else None)


def call(url: str, path: str, key: Path | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a server answers to a GET, or to a POST with a body, see `ask`."""
    place = f"{base_of(url)}{path}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(place, data, {"Content-Type": "application/json", **authorization(key)})
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:
            said: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise _refused(error, place) from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"the server does not answer: {reason}", where=place, fix="give the URL that satrap serve printed"
        ) from error
    return said


def base_of(url: str) -> str:
    """Return the URL of a server without a slash at its end, http:// if it has no scheme."""
    base = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no URL of a server", fix="give one such as http://127.0.0.1:8000")
    return base


def authorization(key: Path | None) -> dict[str, str]:
    """Return the header that shows a server its key, which is in a file; None: it has none."""
    if key is None:
        return {}
    read_key(key)
    return {"Authorization": f"Bearer {key.read_text(encoding='utf-8').strip()}"}


def _refused(error: HTTPError, place: str) -> ConfigError:
    """Return what a server has said instead of an answer."""
    try:
        parts = json.load(error)["error"]
        return ConfigError(
            parts["what"], where=parts.get("where", place), why=parts.get("why", ""), fix=parts.get("fix", "")
        )
    except (ValueError, KeyError, TypeError):
        return ConfigError(f"the server answers with status {error.code}", where=place)
