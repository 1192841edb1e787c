"""Manifests that somebody else wrote: whatever they say, their digest is right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def signed(body: Any) -> bytes:
    """Return the text of a manifest with these values."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}).encode()


def body_of(folder: Path) -> Any:
    body = json.loads((folder / "manifest.json").read_text())
    del body["sha256"]
    return body


def forge(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the values of a manifest."""
    body = body_of(folder)
    change(body)
    (folder / "manifest.json").write_bytes(signed(body))
