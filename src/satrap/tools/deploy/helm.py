"""A Helm chart of a run: the objects of the plain manifests, with values for image and sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from satrap.config import Recipe
from satrap.tools.deploy.kubernetes import manifests_of
from satrap.tools.deploy.request import DeployRequest
from satrap.tools.deploy.text import to_yaml

COMPONENT = "app.kubernetes.io/component"

CONFIG = """\
data:
{{ (.Files.Glob "files/*").AsConfig | indent 2 }}
"""
"""Includes the recipe and the user's code verbatim, so that Helm does not read them as templates."""


def helm(recipe: Recipe, request: DeployRequest) -> dict[str, str]:
    """Return the files of a chart, by path in its folder.

    Values are the image, memory and cores of each kind of pod, and the sizes of volumes. Settings of the
    pods' recipe, such as the number of shards, are fixed. With its default values, the chart renders to the
    objects of `kubernetes`.

    Raises:
        ConfigError: pods cannot run the recipe.
    """
    manifests = manifests_of(recipe, request)
    values: dict[str, Any] = {"image": request.image}
    files = {f"files/{name}": text for name, text in manifests.made.files.items()}
    for object_ in manifests.objects():
        name = f"templates/{object_['kind'].lower()}.yaml"
        object_["metadata"].pop("namespace", None)  # set by helm install --namespace
        if object_["kind"] == "ConfigMap":
            del object_["data"]
            files[name] = to_yaml(object_) + CONFIG
            continue
        for pod in _pods(object_):
            _with_values(pod, values)
        for claim, spec in _claims(object_):
            requests, key = spec["resources"]["requests"], claim.removeprefix(f"{request.name}-")
            values.setdefault("storage", {})[key] = requests["storage"]
            requests["storage"] = _value("storage", key)
        files[name] = to_yaml(object_)
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
    """Return the template of a value, whose name may contain "-"."""
    return "{{ index .Values " + " ".join(map(json.dumps, path)) + " }}"


def _with_values(pod: dict[str, Any], values: dict[str, Any]) -> None:
    component, (container,) = pod["metadata"]["labels"][COMPONENT], pod["spec"]["containers"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    values[component] = {"cpu": requests["cpu"], "memory": requests["memory"]}
    container["image"] = _value("image")
    requests |= {key: _value(component, key) for key in ("cpu", "memory")}
    limits["memory"] = requests["memory"]


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all templates of pods in an object."""
    if isinstance(value, dict):
        if isinstance(value.get("template"), dict):
            yield value["template"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _pods(item)


def _claims(one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and specification of the volumes that an object claims."""
    if one["kind"] == "PersistentVolumeClaim":
        yield one["metadata"]["name"], one["spec"]
    for claim in one["spec"].get("volumeClaimTemplates", []):
        yield claim["metadata"]["name"], claim["spec"]
