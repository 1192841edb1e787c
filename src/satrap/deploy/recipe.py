"""A recipe as pods see it: their paths, the addresses of the shards, and what only one machine can have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from satrap import own_code
from satrap.config import Recipe, to_yaml
from satrap.config.recipe import checked, put
from satrap.config.source import Source, dotted
from satrap.config.tables import memory_of
from satrap.deploy.request import Request
from satrap.errors import ConfigError

PARTS = ("train", "validation", "test")
ROOT = "/srv/satrap"
"""Folder of a pod where volumes are mounted, each in a folder of its own."""
DATA, RUN, KEY = f"{ROOT}/data", f"{ROOT}/run", f"{ROOT}/key/cluster.key"
SERVE_KEY = f"{ROOT}/key/serve.key"
RECIPE = f"{ROOT}/recipe/recipe.yaml"
JOURNAL, TIER, SCRATCH = f"{ROOT}/journal", f"{ROOT}/tier", f"{ROOT}/scratch"

SHARD_PORT, SHARD_METRICS, METRICS = 5000, 9090, 9100
"""Ports of a shard's rows, of its metrics, and of the first worker's metrics, or of a server's."""
SERVE_PORT = 8000
"""Port of a server's answers."""
DEADLINE = 300.0
"""Seconds that workers wait for a shard, if the recipe does not say: a pod takes that long to come back."""
GPUS = 16
"""Most GPUs that a host of the three large clouds has."""
LARGEST = 900_000
"""Bytes of the recipe and the user's own code; an object of Kubernetes has at most a MiB."""


@dataclass(frozen=True, slots=True)
class PodRecipe:
    """A recipe for pods.

    Args:
        recipe: checked again, as the pods will read it.
        files: name -> text, in one folder: `recipe.yaml` and the user's own code.
        journal: whether shards keep a journal.
    """

    recipe: Recipe
    files: dict[str, str]
    journal: bool

    @property
    def ray(self) -> bool:
        """Whether Ray starts the processes, each in a pod of its own."""
        return self.recipe.sections.cluster.launcher == "ray"


def shard_addresses(name: str, shards: int) -> list[str]:
    """Return HOST:PORT of the shards of a run, by the names that its headless Service gives them."""
    return [f"{name}-shard-{i}.{name}-shards:{SHARD_PORT}" for i in range(shards)]


def ray_resource(kind: str) -> str:
    """Return the name by which Ray binds processes of a kind to their pods, such as satrap_shard."""
    return f"satrap_{kind.replace('-', '_')}"


def for_pods(recipe: Recipe, request: Request) -> PodRecipe:
    """Return a recipe as pods can run it.

    Raises:
        ConfigError: the recipe needs what pods do not have.
    """
    _refuse([*_wrong(recipe, request), *_unreachable(recipe, request)])
    sections, plain = recipe.sections, recipe.resolved()
    for part in PARTS:
        if (given := getattr(sections.data, part)) is not None:
            plain["data"][part] = [_in_pod(path) for path in given]
    for join, kept in zip(plain["data"].get("join", ()), sections.data.join, strict=True):
        join["source"] = _in_pod(kept.source)
    if "about" in plain:
        plain["about"].pop("md5", None)  # of files at other paths
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
        plain["checkpoint"].pop("durability", None)  # the shards' own command says it
        if "deadline" not in sections.cluster.model_fields_set:
            cluster["deadline"] = DEADLINE
    files["recipe.yaml"] = to_yaml(plain)
    if sum(len(text.encode()) for text in files.values()) > LARGEST:
        raise ConfigError(
            f"the recipe and your own code have more than {LARGEST:,} bytes",
            where=recipe.source.file,
            why="pods get both from one ConfigMap",
            fix="put the code into the image and name it as package.module:Name",
        )
    return PodRecipe(checked(Source("recipe.yaml", plain)), files, journal)


def _for_ray(recipe: Recipe, request: Request) -> dict[str, Any]:
    """Return the keys of `cluster` that tell Ray which process belongs to which pod."""
    keys = recipe.sections.cluster
    cores = {"shard": request.shard_cpu, "worker": request.worker_cpu, "loader": 1, "embedding_worker": 1}
    resources: dict[str, Any] = {
        kind: {"cpu": count, "custom": {ray_resource(kind): 1}} for kind, count in cores.items()
    }
    resources["worker"]["gpu"] = keys.resources.worker.gpu
    found: dict[str, Any] = {"address": "auto", "key": KEY, "resources": resources}
    given = keys.model_fields_set
    return found | {key: DEADLINE for key in ("deadline", "wait") if key not in given}


def _refuse(wrong: Sequence[ConfigError]) -> None:
    """Raise what is wrong with a recipe as one error."""
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


def _wrong(recipe: Recipe, request: Request) -> Iterator[ConfigError]:
    """Yield an error for each key that pods cannot do with or without."""
    sections = recipe.sections
    cluster, checkpoint = sections.cluster, sections.checkpoint
    url = checkpoint.url or ""
    for path, wrong, what, why, fix in (
        (
            ("cluster", "addresses"),
            bool(cluster.addresses),
            "cluster.addresses names shards that run already",
            "the shards of the manifests have addresses of their own",
            "set cluster.shards to their number instead",
        ),
        (
            ("embedding", "memory"),
            memory_of(sections) is None,
            "embedding.memory is not set",
            "a pod is killed beyond its memory, which must be asked for before",
            "set it, for example to what satrap plan says",
        ),
        (
            ("checkpoint", "every_steps"),
            checkpoint.every_steps is None,
            "checkpoint.every_steps is not set",
            "pods are moved and killed, and without snapshots the run would begin again",
            "set it to the steps of some minutes",
        ),
        (
            ("checkpoint", "url"),
            bool(url) and "://" not in url,
            f"checkpoint.url is a folder of this machine: {url}",
            "pods do not have it",
            "name a URL such as s3://bucket/run, or remove the key: they are then in the volume of the run",
        ),
        (
            ("checkpoint", "url"),
            cluster.exchange == "servers" and not url and not request.shared and cluster.launcher == "local",
            "checkpoint.url is not set",
            "each shard writes and reads its part of a snapshot, and sees no volume of the pod that trains",
            "name a URL such as s3://bucket/run, or share the run's volume: --shared, with a class of "
            "ReadWriteMany",
        ),
        (
            ("training", "device"),
            ":" in sections.training.device,
            f"training.device is {sections.training.device}",
            "a pod sees the GPUs that it is given, from number 0",
            "use cuda",
        ),
        (
            ("cluster", "workers"),
            sections.training.device == "cuda" and cluster.workers > GPUS and cluster.launcher == "local",
            f"{cluster.workers} workers on cuda need as many GPUs in one pod",
            f"all workers of a run are in one pod, and hosts have up to {GPUS} GPUs",
            "use fewer workers, or cluster.launcher: ray, which gives each a pod of its own",
        ),
    ):
        if wrong:
            yield ConfigError(what, where=recipe.source.where(path), why=why, fix=fix)


def _unreachable(recipe: Recipe, request: Request) -> Iterator[ConfigError]:
    """Yield an error for each key with paths that pods do not see."""
    keys = recipe.sections.data
    given = {part: getattr(keys, part) or [] for part in PARTS} | {"join": [one.source for one in keys.join]}
    where = "which has paths relative to its root" if request.data_claim else "if any"
    for key, paths in given.items():
        local = [path for path in paths if "://" not in path]
        pure = map(PurePosixPath, local)
        if local and (request.data_claim is None or any(p.is_absolute() or ".." in p.parts for p in pure)):
            yield ConfigError(
                f"data.{key} is a path of this machine: {', '.join(local)}",
                where=recipe.source.where(("data", key)),
                why=f"pods see URLs, and the volume of --data-claim, {where}",
                fix="name a URL, or copy the data to a volume: a relative path, and --data-claim CLAIM",
            )


def _in_pod(path: str) -> str:
    """Return a data path as pods see it."""
    return path if "://" in path else str(PurePosixPath(DATA) / path)


def _own_code(recipe: Recipe, plain: dict[str, Any]) -> dict[str, str]:
    """Return the files of the user's own code by name; change the keys so that they lie beside the recipe."""
    found: dict[str, Path] = {}
    for path, reference in recipe.own_code().items():
        module, name = own_code.parts(reference)
        if not own_code.is_file(module):
            continue  # installed in the image
        main = Path(module)
        for file in recipe.located(path, own_code.files, main):
            if file.parent != main.parent or found.setdefault(file.name, file) != file:
                raise ConfigError(
                    f"{dotted(path)} needs {file}, which cannot lie in one folder with the recipe",
                    where=recipe.source.where(path),
                    why="pods get the recipe and your own code from one ConfigMap, which has no folders",
                    fix="put the code into the image and name it as package.module:Name",
                )
        put(plain, path, f"{main.name}:{name}")
    return {name: file.read_text(encoding="utf-8") for name, file in found.items()}
