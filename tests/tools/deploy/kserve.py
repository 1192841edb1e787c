"""What KServe asks of an InferenceService, so far as our manifests go.

A predictor is a pod, which Kubernetes' own schema checks, with fields of KServe, written down from its
documented API of version 0.20. With `KSERVE_CRDS=FOLDER`, services are also checked by the definitions of a
release of KServe that are there (`serving.kserve.io_inferenceservices.yaml`).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from ruamel.yaml import YAML

from tests.tools.deploy.kuberay import strict
from tests.tools.deploy.schemas import registry

CRDS = os.environ.get("KSERVE_CRDS")
_POD = {"$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.core.v1.PodSpec"}
_STRATEGY = {
    "$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.apps.v1.DeploymentStrategy"
}
_COUNT = {"type": "integer", "minimum": 0}
FIELDS = {"minReplicas": _COUNT, "maxReplicas": _COUNT, "deploymentStrategy": _STRATEGY}
"""Of KServe, in a predictor."""


def problems(service: dict[str, Any]) -> list[str]:
    """Return what is wrong with an InferenceService, each with its place; empty if it is valid."""
    predictor = service["spec"]["predictor"]
    pod = {key: value for key, value in predictor.items() if key not in FIELDS}
    own = {key: value for key, value in predictor.items() if key in FIELDS}
    shape = {"type": "object", "properties": FIELDS, "required": ["minReplicas"]}
    said = []
    for schema, value in ((_POD, pod), (shape, own)):
        found = jsonschema.Draft202012Validator(schema, registry=registry()).iter_errors(value)
        said += [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
    return said or rules(service)


def rules(service: dict[str, Any]) -> list[str]:
    """Return which rules between fields are broken; KServe's webhooks check them when a service comes."""
    predictor = service["spec"]["predictor"]
    [container] = predictor["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    checks = {
        "the API is another": (service["apiVersion"], service["kind"])
        != ("serving.kserve.io/v1beta1", "InferenceService"),
        "the container has another name": container["name"] != "kserve-container",
        "the protocol is unknown": variables.get("PROTOCOL") not in ("v1", "v2"),
        "most replicas are fewer than least": predictor["maxReplicas"] < predictor["minReplicas"],
        "the first port is not that of answers": container["ports"][0]["name"] != "http",
    }
    return [what for what, broken in checks.items() if broken]


@cache
def schema_of(folder: Path) -> Any:
    """Return the definition of a release; reading it takes half a minute."""
    text = (folder / "serving.kserve.io_inferenceservices.yaml").read_text(encoding="utf-8")
    versions = YAML(typ="safe").load(text)["spec"]["versions"]
    (whole,) = (one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1beta1")
    schema = strict(whole)
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def problems_of_release(service: dict[str, Any], folder: Path) -> list[str]:
    """Return what is wrong with an InferenceService by the definitions of a release of KServe."""
    found = jsonschema.Draft202012Validator(schema_of(folder)).iter_errors(service)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
