"""Derives the number of workers from the dense network's mesh, and checks the mesh against other keys."""

from satrap.config.keys.sections import Sections
from satrap.config.source import RecipeSource, dotted
from satrap.errors import ConfigError


def with_workers(sections: Sections, source: RecipeSource) -> Sections:
    """Return the recipe; if it has no `cluster.workers`, set this key to the size of the mesh.

    Raises:
        ConfigError: `cluster.workers` differs from the size of the mesh.
    """
    mesh, cluster = sections.dense.mesh, sections.cluster
    explicit = "workers" in cluster.model_fields_set
    if mesh.data is None and explicit and not cluster.workers % (mesh.tensor * mesh.pipeline):
        return sections
    data = mesh.data or 1
    size = data * mesh.tensor * mesh.pipeline
    if not explicit:
        return sections.model_copy(update={"cluster": cluster.model_copy(update={"workers": size})})
    if cluster.workers != size:
        factors = [mesh.data or "data", mesh.tensor] + [mesh.pipeline] * (mesh.pipeline > 1)
        product = " x ".join(map(str, factors)) + (f" = {size}" if mesh.data else "")
        raise ConfigError(
            f"cluster.workers is {cluster.workers}, but dense.mesh is {product}",
            where=source.where(("cluster", "workers")),
            why="the product of the mesh's dimensions must be the number of workers",
            fix="remove cluster.workers, or change the mesh",
        )
    return sections


def check_mesh(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for keys that the mesh does not support."""
    dense, cluster = sections.dense, sections.cluster
    _check_shard_size(sections, source)
    _check_pipeline(sections, source)
    peers = dense.mesh.tensor * dense.mesh.pipeline > 1
    if not peers and not (dense.sharded and sections.shares > 1):
        return
    key = "dense.sharded"
    if peers:
        key = "dense.mesh.tensor" if dense.mesh.tensor > 1 else "dense.mesh.pipeline"
    same = "workers that share one copy of the network train the same batches"
    placed = any(placement == "replicated" for placement in cluster.placements.values())
    for path, wrong, why in (
        (
            ("training", "mode"),
            sections.training.mode == "async",
            "workers in async mode pull whole networks",
        ),
        (
            ("cluster", "wire", "dense"),
            cluster.wire.dense != "float32",
            "PyTorch sums gradients of a sharded network in float32",
        ),
        (
            ("dense", "compile"),
            dense.compile,
            "torch.compile does not support sharded layers and pipeline stages",
        ),
        (
            ("cluster", "embedding_workers"),
            cluster.embedding_workers > 0,
            "this combination is not supported yet",
        ),
        (
            ("cluster", "loaders"),
            peers and cluster.loaders > 0,
            f"{same}, but a loader delivers each batch once",
        ),
        (
            ("training", "lookahead"),
            peers and sections.training.lookahead > 0,
            "this combination is not supported yet",
        ),
        (
            ("cluster", "placements"),
            peers and cluster.exchange == "servers" and placed,
            "replicas in addition to shard servers are not supported yet",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{dotted(path)} cannot be combined with {key}",
                where=source.where(path),
                why=why,
                fix=f"remove {dotted(path)}, or {key}",
            )


def _check_pipeline(sections: Sections, source: RecipeSource) -> None:
    dense = sections.dense
    for key in ("schedule", "stages", "stages_per_rank"):
        if dense.mesh.pipeline == 1 and getattr(dense, key) != getattr(type(dense)(), key):
            raise ConfigError(
                f"dense.{key} has no effect without dense.mesh.pipeline",
                where=source.where(("dense", key)),
                why="without pipeline parallelism the network has no stages",
                fix=f"remove dense.{key}, or set dense.mesh.pipeline",
            )


def _check_shard_size(sections: Sections, source: RecipeSource) -> None:
    size, shares = sections.dense.shard_size, sections.shares
    if size is not None and (not sections.dense.sharded or shares % size):
        raise ConfigError(
            f"dense.shard_size is {size}, but "
            + (f"there are {shares} copies" if sections.dense.sharded else "dense.sharded is false"),
            where=source.where(("dense", "shard_size")),
            why="all parts of the network must have the same number of copies",
            fix="use a divisor of the number of copies, or remove dense.shard_size"
            if sections.dense.sharded
            else "set dense.sharded, or remove dense.shard_size",
        )
