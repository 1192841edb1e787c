"""Counts of ids that a schema holds, as files instead of texts in the settings."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from satrap.id_counts import IdCounts

COUNTS = "counts"
"""Setting: feature -> the file with its counts."""
DIGEST = "counts_digest"
"""Setting: digest of the files of counts. A delta has none of them if the snapshot before has this digest."""


def is_counts_file(name: str) -> bool:
    """Return whether a file holds the counts of a feature."""
    return name.startswith("counts-")


def apart(settings: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return settings without the counts of their schema, and name -> content of the files of counts.

    The names of the files begin with `prefix`.
    """
    schema = settings.get("schema")
    features: Mapping[str, Any] = schema.get("features", {}) if isinstance(schema, Mapping) else {}
    counted = [name for name, feature in features.items() if feature.get("counts") is not None]
    if not counted:
        return dict(settings), {}
    names = {name: f"{prefix}counts-{number:03d}.safetensors" for number, name in enumerate(counted)}
    files = {names[name]: IdCounts.from_text(features[name]["counts"]).to_bytes() for name in counted}
    without = {name: {**features[name], "counts": None} for name in counted}
    plain = {**settings["schema"], "features": {**features, **without}}
    digest = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in files.values())).hexdigest()
    return {**settings, "schema": plain, COUNTS: names, DIGEST: digest}, files


def together(settings: Mapping[str, Any], read: Callable[[str], bytes]) -> dict[str, Any]:
    """Return settings with the counts of their schema.

    Args:
        settings: from `apart`.
        read: returns the content of a file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the settings or files are invalid.
    """
    plain = dict(settings)
    names = plain.pop(COUNTS, None)
    plain.pop(DIGEST, None)
    if not names:
        return plain
    features = {
        name: {**feature, "counts": IdCounts.from_bytes(read(names[name])).text} if name in names else feature
        for name, feature in plain["schema"]["features"].items()
    }
    return {**plain, "schema": {**plain["schema"], "features": features}}


def without_id(data: bytes, id_: int) -> bytes:
    """Return the content of a file without an id."""
    return IdCounts.from_bytes(data).without(id_).to_bytes()
