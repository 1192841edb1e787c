"""The manifests of a run on Kubernetes, as text."""

from __future__ import annotations

from importlib.metadata import version

from satrap.config import Recipe
from satrap.deploy.manifests import Manifests
from satrap.deploy.ray_manifests import RayManifests
from satrap.deploy.recipe import for_pods
from satrap.deploy.request import Request
from satrap.deploy.text import Block, to_yaml


def kubernetes(recipe: Recipe, request: Request) -> str:
    """Return YAML of all objects that a run of a recipe needs; its head says how to use them.

    Raises:
        ConfigError: the recipe needs what pods do not have.
    """
    manifests = manifests_of(recipe, request)
    objects = manifests.objects()
    config = objects[0]["data"]
    config |= {name: Block(text) for name, text in config.items()}
    head = "".join(f"# {line}".rstrip() + "\n" for line in _head(manifests))
    return head + "".join("---\n" + to_yaml(one) for one in objects)


def manifests_of(recipe: Recipe, request: Request) -> Manifests:
    """Return what makes the objects: for plain Kubernetes, or for KubeRay if Ray launches the processes."""
    made = for_pods(recipe, request)
    return (RayManifests if made.ray else Manifests)(request, made)


def _head(manifests: Manifests) -> list[str]:
    request = manifests.request
    name, secret = request.name, request.key_secret or f"{request.name}-key"
    kubectl = f"kubectl -n {request.namespace}" if request.namespace else "kubectl"
    lines = [f"Made by satrap {version('satrap')}: satrap deploy kubernetes", ""]
    if manifests.shards or manifests.made.ray:
        lines += [
            "once, before: the key of the cluster, which these manifests name and do not hold",
            "  satrap key cluster.key",
            f"  {kubectl} create secret generic {secret} --from-file=cluster.key",
        ]
    lines += [
        f"start:  {kubectl} apply -f FILE",
        f"watch:  {kubectl} logs -f job/{name}-train",
        f"result: folder {name} in the volume of claim {name}-run",
    ]
    if manifests.shards:
        lines.append(f"after the job, shards still run: {kubectl} delete statefulset {name}-shard")
    return lines
