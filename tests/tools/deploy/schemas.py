"""Checks manifests against the schemas of Kubernetes, strictly: unknown fields are errors."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
from referencing import Registry
from referencing.jsonschema import DRAFT202012

VERSION = "v1.37.0-local-strict"
FOLDER = files("kubernetes_validate") / "kubernetes-json-schema" / VERSION


@cache
def registry() -> Registry[Any]:
    """Return the definitions that schemas refer to."""
    definitions = json.loads((FOLDER / "_definitions.json").read_text(encoding="utf-8"))
    return DRAFT202012.create_resource(definitions) @ Registry()


def problems(manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong with an object, each with its place; empty if it is valid."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (manifest["kind"].lower(), group.split(".")[0], version)))
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    found = jsonschema.Draft202012Validator(schema, registry=registry()).iter_errors(manifest)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
