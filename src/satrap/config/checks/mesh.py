"""Derives the number of workers from the dense network's mesh."""

from satrap.config.keys.sections import Sections
from satrap.config.source import RecipeSource
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


def check_shard_size(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for a size of shard groups that does not divide the copies."""
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
