"""What KubeRay asks of a RayJob, so far as our manifests go.

`SPEC` has the fields that satrap uses, written down from the documented API of KubeRay 1.7; templates of pods
are checked by Kubernetes' own schema. With `KUBERAY_CRDS=FOLDER`, jobs are also checked by the definitions of
a release of KubeRay that are there (`ray.io_rayjobs.yaml`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema
from ruamel.yaml import YAML

from tests.tools.deploy.schemas import registry

CRDS = os.environ.get("KUBERAY_CRDS")
NAME = 47
"""Characters of a RayJob's name."""


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_TEMPLATE = {"$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.core.v1.PodTemplateSpec"}


def _number(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


_GROUP = {"rayStartParams": _TEXTS, "resources": _TEXTS, "template": _TEMPLATE}
SPEC = _object(
    ("rayClusterSpec", "entrypoint"),
    entrypoint=_TEXT,
    shutdownAfterJobFinishes=_FLAG,
    suspend=_FLAG,
    backoffLimit=_number(0),
    preRunningDeadlineSeconds=_number(1),
    rayClusterSpec=_object(
        ("headGroupSpec",),
        rayVersion=_TEXT,
        authOptions=_object(mode={"enum": ["disabled", "token"]}, secretName=_TEXT),
        headGroupSpec=_object(("template",), **_GROUP),
        workerGroupSpecs={
            "type": "array",
            "items": _object(
                ("groupName", "minReplicas", "maxReplicas", "template"),
                groupName={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                replicas=_number(0),
                minReplicas=_number(0),
                maxReplicas=_number(0),
                **_GROUP,
            ),
        },
    ),
)


def problems(job: dict[str, Any]) -> list[str]:
    """Return what is wrong with a RayJob, each with its place; empty if it is valid."""
    found = jsonschema.Draft202012Validator(SPEC, registry=registry()).iter_errors(job["spec"])
    said = [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
    return said + rules(job)


def rules(job: dict[str, Any]) -> list[str]:
    """Return which rules between fields are broken; KubeRay's operator checks them when a job comes."""
    spec = job["spec"]
    cluster = spec.get("rayClusterSpec", {})
    groups = cluster.get("workerGroupSpecs", [])
    names = [group.get("groupName") for group in groups]
    version = tuple(int(part) for part in cluster.get("rayVersion", "0").split("."))
    checks = {
        "the name is too long": len(job["metadata"]["name"]) > NAME,
        "a job can be suspended only if its cluster ends with it": spec.get("suspend", False)
        and not spec.get("shutdownAfterJobFinishes", False),
        "two groups have one name": len(set(names)) < len(names),
        "tokens need Ray 2.52": cluster.get("authOptions", {}).get("mode") == "token" and version < (2, 52),
        "resources are given twice": any(
            group.get("resources")
            and {"num-cpus", "num-gpus", "memory", "resources"} & set(group["rayStartParams"])
            for group in (cluster.get("headGroupSpec", {}), *groups)
        ),
        "replicas are outside of their bounds": any(
            not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
            for group in groups
            if {"minReplicas", "replicas", "maxReplicas"} <= set(group)
        ),
    }
    return [what for what, broken in checks.items() if broken]


def strict(schema: Any) -> Any:
    """Return a schema of a custom resource as a JSON schema that takes no unknown field."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {key: strict(value) for key, value in schema.items() if not key.startswith("x-")}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        made["type"] = [schema["type"], "null"]
    return made


def problems_of_release(job: dict[str, Any], folder: Path) -> list[str]:
    """Return what is wrong with a RayJob by the definitions of a release of KubeRay."""
    text = (folder / "ray.io_rayjobs.yaml").read_text(encoding="utf-8")
    versions = YAML(typ="safe").load(text)["spec"]["versions"]
    (whole,) = (one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1")
    schema = strict(whole)
    schema["properties"]["metadata"] = {"type": "object"}
    found = jsonschema.Draft202012Validator(schema).iter_errors(job)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]
