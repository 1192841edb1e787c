"""A Helm chart of a run: the same objects as the plain manifests, with values for what may differ later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from satrap.config import Recipe
from satrap.deploy.kubernetes import manifests_of
from satrap.deploy.request import Request
from satrap.deploy.text import to_yaml

COMPONENT = "app.kubernetes.io/component"

CONFIG = """\
data:
{{ (.Files.Glob "files/*").AsConfig | indent 2 }}
"""
"""The recipe and the user's own code as they are: Helm must not read them as templates."""


def helm(recipe: Recipe, request: Request) -> dict[str, str]:
    """Return the files of a chart, by their path in its folder.

    Values are the image, memory and cores of each kind of pod, and sizes of volumes. What the pods' recipe
    depends on, such as the number of shards, is fixed. Rendered with its own values the chart gives the
    objects of `kubernetes`.

    Raises:
        ConfigError: the recipe needs what pods do not have.
    """
    manifests = manifests_of(recipe, request)
    values: dict[str, Any] = {"image": request.image}
    files = {f"files/{name}": text for name, text in manifests.made.files.items()}
    for one in manifests.objects():
        name = f"templates/{one['kind'].lower()}.yaml"
        one["metadata"].pop("namespace", None)  # Helm's own: helm install --namespace
        if one["kind"] == "ConfigMap":
            del one["data"]
            files[name] = to_yaml(one) + CONFIG
            continue
        for pod in _pods(one):
            _with_values(pod, values)
        for claim, spec in _claims(one):
            asked, key = spec["resources"]["requests"], claim.removeprefix(f"{request.name}-")
            values.setdefault("storage", {})[key] = asked["storage"]
            asked["storage"] = _value("storage", key)
        files[name] = to_yaml(one)
    about = {
        "apiVersion": "v2",
        "name": request.name,
        "description": f"A run of satrap: {recipe.name}",
        "type": "application",
        "version": "0.1.0",
        "appVersion": version("satrap"),
    }
    return {"Chart.yaml": to_yaml(about), "values.yaml": to_yaml(values), **files}


def _value(*path: str) -> str:
    """Return the template of a value; a name may have "-"."""
    return "{{ index .Values " + " ".join(map(json.dumps, path)) + " }}"


def _with_values(pod: dict[str, Any], values: dict[str, Any]) -> None:
    component, (container,) = pod["metadata"]["labels"][COMPONENT], pod["spec"]["containers"]
    asked, limits = container["resources"]["requests"], container["resources"]["limits"]
    values[component] = {"cpu": asked["cpu"], "memory": asked["memory"]}
    container["image"] = _value("image")
    asked |= {key: _value(component, key) for key in ("cpu", "memory")}
    limits["memory"] = asked["memory"]


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all templates of pods in an object."""
    if isinstance(value, dict):
        if isinstance(value.get("template"), dict):
            yield value["template"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _pods(one)


def _claims(one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and specification of the volumes that an object claims."""
    if one["kind"] == "PersistentVolumeClaim":
        yield one["metadata"]["name"], one["spec"]
    for claim in one["spec"].get("volumeClaimTemplates", []):
        yield claim["metadata"]["name"], claim["spec"]
