"""Adapts a recipe to pods: paths and shard addresses. Rejects settings that need a single machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from satrap.config import Recipe, to_yaml
from satrap.config.checks.tables import memory_of
from satrap.config.recipe import checked, put
from satrap.config.source import RecipeSource, dotted
from satrap.errors import ConfigError
from satrap.runtime import user_code
from satrap.tools.deploy.request import DeployRequest

PARTS = ("train", "validation", "test")
ROOT = "/srv/satrap"
"""Folder of a pod where volumes are mounted, each in its own subfolder."""
DATA, RUN, KEY = f"{ROOT}/data", f"{ROOT}/run", f"{ROOT}/key/cluster.key"
SERVE_KEY = f"{ROOT}/key/serve.key"
RECIPE = f"{ROOT}/recipe/recipe.yaml"
JOURNAL, TIER, SCRATCH = f"{ROOT}/journal", f"{ROOT}/tier", f"{ROOT}/scratch"

SHARD_PORT, SHARD_METRICS, METRICS = 5000, 9090, 9100
"""Ports of a shard's rows, of a shard's metrics, and of the metrics of the first worker or a server."""
SERVE_PORT = 8000
"""Port of a server's responses."""
DEADLINE = 300.0
"""Default seconds that workers wait for a shard: a pod takes that long to come back."""
GPUS = 16
"""Maximum number of GPUs per host in the three large clouds."""
LARGEST = 900_000
"""Maximum bytes of the recipe and the user's code; a Kubernetes object has at most 1 MiB."""


@dataclass(frozen=True, slots=True)
class PodRecipe:
    """A recipe for pods.

    Args:
        recipe: the recipe as pods read it, checked again.
        files: name -> text, in one folder: `recipe.yaml` and the user's code.
        journal: whether shards keep a journal.
    """

    recipe: Recipe
    files: dict[str, str]
    journal: bool

    @property
    def ray(self) -> bool:
        """Whether Ray starts the processes, each in its own pod."""
        return self.recipe.sections.cluster.launcher == "ray"


def shard_addresses(name: str, shards: int) -> list[str]:
    """Return HOST:PORT of a run's shards, by the DNS names of their headless Service."""
    return [f"{name}-shard-{i}.{name}-shards:{SHARD_PORT}" for i in range(shards)]


def ray_resource(kind: str) -> str:
    """Return Ray's custom resource that binds processes of a kind to their pods, such as satrap_shard."""
    return f"satrap_{kind.replace('-', '_')}"


def for_pods(recipe: Recipe, request: DeployRequest) -> PodRecipe:
    """Return a recipe as pods can run it.

    Raises:
        ConfigError: pods cannot run the recipe.
    """
    _refuse([*_wrong(recipe, request), *_wrong_devices(recipe), *_unreachable(recipe, request)])
    sections, plain = recipe.sections, recipe.resolved()
    for part in PARTS:
        if (paths := getattr(sections.data, part)) is not None:
            plain["data"][part] = [_in_pod(path) for path in paths]
    for join, original in zip(plain["data"].get("join", ()), sections.data.join, strict=True):
        join["source"] = _in_pod(original.source)
    if "about" in plain:
        plain["about"].pop("md5", None)  # digests of files at other paths
    files = _own_code(recipe, plain)
    if "tier" in plain["embedding"]:
        plain["embedding"]["tier"]["path"] = TIER
    plain["training"].setdefault("threads", request.worker_cpu)
    cluster = plain["cluster"]
    cluster |= {"metrics_port": METRICS, "metrics_host": "0.0.0.0"}
    journal = sections.checkpoint.durability == "journal"
    if sections.cluster.launcher == "ray":
        cluster |= _for_ray(recipe, request)
    elif sections.cluster.exchange == "servers":
        cluster |= {"addresses": shard_addresses(request.name, cluster.pop("shards")), "key": KEY}
        plain["checkpoint"].pop("durability", None)  # set in the shards' command
        if "deadline" not in sections.cluster.model_fields_set:
            cluster["deadline"] = DEADLINE
    files["recipe.yaml"] = to_yaml(plain)
    if sum(len(text.encode()) for text in files.values()) > LARGEST:
        raise ConfigError(
            f"the recipe and your code have more than {LARGEST:,} bytes",
            where=recipe.source.file,
            why="pods get both from one ConfigMap",
            fix="put the code into the image and name it as package.module:Name",
        )
    return PodRecipe(checked(RecipeSource("recipe.yaml", plain)), files, journal)


def _for_ray(recipe: Recipe, request: DeployRequest) -> dict[str, Any]:
    """Return the keys of `cluster` by which Ray assigns processes to pods."""
    keys = recipe.sections.cluster
    cores = {"shard": request.shard_cpu, "worker": request.worker_cpu, "loader": 1, "embedding_worker": 1}
    resources: dict[str, Any] = {
        kind: {"cpu": count, "custom": {ray_resource(kind): 1}} for kind, count in cores.items()
    }
    resources["worker"]["gpu"] = keys.resources.worker.gpu
    settings: dict[str, Any] = {"address": "auto", "key": KEY, "resources": resources}
    explicit = keys.model_fields_set
    return settings | {key: DEADLINE for key in ("deadline", "wait") if key not in explicit}


def _refuse(wrong: Sequence[ConfigError]) -> None:
    """Raise all errors of a recipe as one error."""
    if len(wrong) < 2:
        for error in wrong:
            raise error
        return

    def joined(part: str) -> str:
        return "; ".join(dict.fromkeys(getattr(error, part) for error in wrong))

    raise ConfigError(
        f"pods cannot run this recipe for {len(wrong)} reasons: {joined('what')}",
        where=joined("where"),
        why=joined("why"),
        fix="; ".join(f"({number}) {error.fix}" for number, error in enumerate(wrong, 1)),
    )


def _wrong(recipe: Recipe, request: DeployRequest) -> Iterator[ConfigError]:
    """Yield an error for each key that pods need or do not support."""
    sections = recipe.sections
    cluster, checkpoint = sections.cluster, sections.checkpoint
    url = checkpoint.url or ""
    for path, wrong, what, why, fix in (
        (
            ("cluster", "addresses"),
            bool(cluster.addresses),
            "cluster.addresses names running shards",
            "the shards of the manifests have their own addresses",
            "set cluster.shards to their number instead",
        ),
        (
            ("embedding", "memory"),
            memory_of(sections) is None,
            "embedding.memory is not set",
            "a pod must reserve its memory in advance, and is killed when it uses more",
            "set embedding.memory, for example to the result of satrap plan",
        ),
        (
            ("checkpoint", "every_steps"),
            checkpoint.every_steps is None,
            "checkpoint.every_steps is not set",
            "pods can be killed, and without snapshots the run would restart from the beginning",
            "set checkpoint.every_steps to the number of steps in some minutes",
        ),
        (
            ("checkpoint", "url"),
            bool(url) and "://" not in url,
            f"checkpoint.url is a folder of this machine: {url}",
            "pods do not have this folder",
            "use a URL such as s3://bucket/run, or remove the key to keep snapshots in the run's volume",
        ),
        (
            ("checkpoint", "url"),
            cluster.exchange == "servers" and not url and not request.shared and cluster.launcher == "local",
            "checkpoint.url is not set",
            "each shard writes and reads its part of a snapshot, but cannot mount the training pod's volume",
            "use a URL such as s3://bucket/run, or share the run's volume with --shared and a storage "
            "class that allows ReadWriteMany",
        ),
    ):
        if wrong:
            yield ConfigError(what, where=recipe.source.where(path), why=why, fix=fix)


def _wrong_devices(recipe: Recipe) -> Iterator[ConfigError]:
    """Yield an error for each key that does not suit the GPUs of pods."""
    sections, cluster = recipe.sections, recipe.sections.cluster
    for path, wrong, what, why, fix in (
        (
            ("training", "device"),
            ":" in sections.training.device,
            f"training.device is {sections.training.device}",
            "a pod sees only its own GPUs, numbered from 0",
            "set training.device to cuda",
        ),
        (
            ("embedding", "tier"),
            sections.embedding.tier is not None and sections.embedding.tier.in_memory,
            "embedding.tier is in host memory",
            "the memory that pods reserve is embedding.memory, which is the GPU's here",
            "use a folder as the path of the tier",
        ),
        (
            ("cluster", "workers"),
            sections.training.device == "cuda" and cluster.workers > GPUS and cluster.launcher == "local",
            f"{cluster.workers} workers on cuda need {cluster.workers} GPUs in one pod",
            f"all workers of a run are in one pod, and hosts have up to {GPUS} GPUs",
            "use fewer workers, or cluster.launcher: ray, which gives each worker its own pod",
        ),
    ):
        if wrong:
            yield ConfigError(what, where=recipe.source.where(path), why=why, fix=fix)


def _unreachable(recipe: Recipe, request: DeployRequest) -> Iterator[ConfigError]:
    """Yield an error for each key with paths that pods cannot reach."""
    keys = recipe.sections.data
    sources = {part: getattr(keys, part) or [] for part in PARTS}
    where = "by paths relative to its root" if request.data_claim else "if it is given"
    for key, paths in (sources | {"join": [join.source for join in keys.join]}).items():
        local = [path for path in paths if "://" not in path]
        pure = map(PurePosixPath, local)
        if local and (request.data_claim is None or any(p.is_absolute() or ".." in p.parts for p in pure)):
            yield ConfigError(
                f"data.{key} is a path of this machine: {', '.join(local)}",
                where=recipe.source.where(("data", key)),
                why=f"pods can reach URLs and the volume of --data-claim, {where}",
                fix="use a URL, or copy the data to a volume and use a relative path and --data-claim CLAIM",
            )


def _in_pod(path: str) -> str:
    """Return a data path in a pod."""
    return path if "://" in path else str(PurePosixPath(DATA) / path)


def _own_code(recipe: Recipe, plain: dict[str, Any]) -> dict[str, str]:
    """Return the files of the user's code by name, and change their keys to the folder of the recipe."""
    files: dict[str, Path] = {}
    for path, reference in recipe.own_code().items():
        module, name = user_code.parts(reference)
        if not user_code.is_file(module):
            continue  # installed in the image
        main = Path(module)
        for file in recipe.located(path, user_code.files, main):
            if file.parent != main.parent or files.setdefault(file.name, file) != file:
                raise ConfigError(
                    f"{dotted(path)} needs {file}, which cannot be in the same folder as the recipe",
                    where=recipe.source.where(path),
                    why="pods get the recipe and your code from one ConfigMap, which has no subfolders",
                    fix="put the code into the image and name it as package.module:Name",
                )
        put(plain, path, f"{main.name}:{name}")
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
