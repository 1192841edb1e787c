"""Makes the number of workers that of the dense network's mesh, and checks what goes with a mesh."""

from satrap.config.keys import Sections
from satrap.config.source import Source, dotted
from satrap.errors import ConfigError


def with_workers(sections: Sections, source: Source) -> Sections:
    """Return a recipe with as many workers as its mesh has, if it does not say how many there are.

    Raises:
        ConfigError: it says another number.
    """
    mesh, cluster = sections.dense.mesh, sections.cluster
    given = "workers" in cluster.model_fields_set
    if mesh.data is None and given and not cluster.workers % (mesh.tensor * mesh.pipeline):
        return sections
    data = mesh.data or 1
    size = data * mesh.tensor * mesh.pipeline
    if not given:
        return sections.model_copy(update={"cluster": cluster.model_copy(update={"workers": size})})
    if cluster.workers != size:
        factors = [mesh.data or "data", mesh.tensor] + [mesh.pipeline] * (mesh.pipeline > 1)
        said = " x ".join(map(str, factors)) + (f" = {size}" if mesh.data else "")
        raise ConfigError(
            f"cluster.workers is {cluster.workers}, but dense.mesh is {said}",
            where=source.where(("cluster", "workers")),
            why="each worker has one place in the mesh",
            fix="remove cluster.workers, or change the mesh",
        )
    return sections


def check_mesh(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for keys that do not go with the mesh."""
    dense, cluster = sections.dense, sections.cluster
    _check_shard_size(sections, source)
    _check_pipeline(sections, source)
    peers = dense.mesh.tensor * dense.mesh.pipeline > 1
    if not peers and not (dense.sharded and sections.shares > 1):
        return
    key = "dense.sharded"
    if peers:
        key = "dense.mesh.tensor" if dense.mesh.tensor > 1 else "dense.mesh.pipeline"
    same = "workers with parts of one copy train the same batches"
    placed = any(placement == "replicated" for placement in cluster.placements.values())
    for path, wrong, why in (
        (("training", "mode"), sections.training.mode == "async", "its workers pull whole networks"),
        (("cluster", "wire", "dense"), cluster.wire.dense != "float32", "PyTorch adds gradients in float32"),
        (("dense", "compile"), dense.compile, "what gathers weights or sends activations is not translated"),
        (("cluster", "embedding_workers"), cluster.embedding_workers > 0, "it is not supported yet"),
        (("cluster", "loaders"), peers and cluster.loaders > 0, f"{same}, and a loader gives each once"),
        (("training", "lookahead"), peers and sections.training.lookahead > 0, "it is not supported yet"),
        (
            ("cluster", "placements"),
            peers and cluster.exchange == "servers" and placed,
            "replicas beside shard servers are not supported yet",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{dotted(path)} does not go with {key}",
                where=source.where(path),
                why=why,
                fix=f"remove {dotted(path)}, or {key}",
            )


def _check_pipeline(sections: Sections, source: Source) -> None:
    dense = sections.dense
    for key in ("schedule", "stages", "stages_per_rank"):
        if dense.mesh.pipeline == 1 and getattr(dense, key) != getattr(type(dense)(), key):
            raise ConfigError(
                f"dense.{key} has no effect without dense.mesh.pipeline",
                where=source.where(("dense", key)),
                why="the network has no stages",
                fix=f"remove dense.{key}, or set dense.mesh.pipeline",
            )


def _check_shard_size(sections: Sections, source: Source) -> None:
    size, shares = sections.dense.shard_size, sections.shares
    if size is not None and (not sections.dense.sharded or shares % size):
        raise ConfigError(
            f"dense.shard_size is {size}, but "
            + (f"there are {shares} copies" if sections.dense.sharded else "dense.sharded is false"),
            where=source.where(("dense", "shard_size")),
            why="each part of the network must have as many copies as any other",
            fix="use a divisor of the number of copies, or remove the key"
            if sections.dense.sharded
            else "set dense.sharded, or remove the key",
        )
