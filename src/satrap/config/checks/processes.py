"""Checks the numbers and addresses of a run's processes, and the names of placed tables."""

from satrap.config.checks.tables import kept
from satrap.config.keys.sections import Sections
from satrap.config.source import RecipeSource
from satrap.errors import ConfigError


def check_processes(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for a wrong number of processes, or the placement of an unknown table."""
    cluster, tables = sections.cluster, sorted(kept(sections))
    for table in sorted(cluster.placements.keys() - set(tables)):
        raise ConfigError(
            f"cluster.placements names the unknown table {table!r}",
            where=source.where(("cluster", "placements", table)),
            fix=f"tables: {', '.join(tables) or 'none'}",
        )
    named = len(cluster.addresses)
    for key, wrong, why, fix in (
        (
            "addresses",
            len(set(cluster.addresses)) < named,
            "an address is given twice",
            "name each shard once",
        ),
        ("shards", cluster.shards not in (1, named), f"there are {named} addresses", "remove cluster.shards"),
    ):
        if named and wrong:
            what = f"cluster.{key} cannot be combined with cluster.addresses"
            raise ConfigError(what, where=source.where(("cluster", key)), why=why, fix=fix)
    for key, why in (
        ("loaders", "a worker gets all its batches from one loader"),
        ("embedding_workers", "one embedding worker looks up all ids of a worker"),
    ):
        count = getattr(cluster, key)
        if count > cluster.workers:
            raise ConfigError(
                f"cluster.{key} is {count}, but cluster.workers is {cluster.workers}",
                where=source.where(("cluster", key)),
                why=why,
                fix=f"set cluster.{key} to at most {cluster.workers}",
            )
    if cluster.launcher == "ray" and sections.training.device != "cpu" and cluster.resources.worker.gpu < 1:
        raise ConfigError(
            f"training.device is {sections.training.device}, but cluster.resources.worker.gpu is below 1",
            where=source.where(("training", "device")),
            why="Ray hides GPUs that a process did not reserve",
            fix="set cluster.resources.worker.gpu to 1",
        )
