"""The manifests of a run on Kubernetes, as text."""

from __future__ import annotations

from importlib.metadata import version

from satrap.config import Recipe
from satrap.errors import ConfigError
from satrap.tools.deploy.manifests import Manifests, Object
from satrap.tools.deploy.ray_manifests import RayManifests
from satrap.tools.deploy.recipe import SERVE_PORT, for_pods
from satrap.tools.deploy.request import DeployRequest
from satrap.tools.deploy.serving import Servers, head_of_servers
from satrap.tools.deploy.text import LiteralBlock, to_yaml


def kubernetes(recipe: Recipe, request: DeployRequest) -> str:
    """Return YAML of all objects of a run and its servers; comments at the top explain its use.

    Raises:
        ConfigError: pods cannot run the recipe.
    """
    manifests = manifests_of(recipe, request)
    objects = manifests.objects() + _servers(manifests)
    config = objects[0]["data"]
    config |= {name: LiteralBlock(text) for name, text in config.items()}
    head = "".join(f"# {line}".rstrip() + "\n" for line in _head(manifests))
    return head + "".join("---\n" + to_yaml(object_) for object_ in objects)


def manifests_of(recipe: Recipe, request: DeployRequest) -> Manifests:
    """Return the maker of the objects: for plain Kubernetes, or for KubeRay if Ray launches the processes."""
    made = for_pods(recipe, request)
    return (RayManifests if made.ray else Manifests)(request, made)


def _servers(manifests: Manifests) -> list[Object]:
    """Return the objects that serve a run, if the request has servers."""
    request = manifests.request
    if not request.servers:
        return []
    if not (request.shared or manifests.made.ray):
        raise ConfigError(
            "servers cannot mount the volume of the training pod",
            where="--servers",
            why="servers read the run's feed in the run folder",
            fix="share the run's volume with --shared, with a storage class that allows ReadWriteMany",
        )
    return Servers(request, manifests.made).objects()


def _head(manifests: Manifests) -> list[str]:
    request = manifests.request
    name, secret = request.name, request.key_secret or f"{request.name}-key"
    kubectl = f"kubectl -n {request.namespace}" if request.namespace else "kubectl"
    lines = [f"Made by satrap {version('satrap')}: satrap deploy kubernetes", ""]
    if manifests.shards or manifests.made.ray:
        lines += [
            "once, before: the key of the cluster, which is not part of these manifests",
            "  satrap key cluster.key",
            f"  {kubectl} create secret generic {secret} --from-file=cluster.key",
        ]
    lines += [
        f"start:  {kubectl} apply -f FILE",
        f"watch:  {kubectl} logs -f job/{name}-train",
        f"result: folder {name} in the volume of claim {name}-run",
    ]
    if request.servers:
        lines[2:2] = head_of_servers(request)
        lines.append(
            f"scores: http://{name}-serve:{SERVE_PORT}/v1/score, after the run has published its first "
            "version"
        )
    if manifests.shards:
        lines.append(
            f"after the job, the shards keep running; delete them: {kubectl} delete statefulset {name}-shard"
        )
    return lines
