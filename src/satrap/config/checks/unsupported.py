"""Rejects unsupported combinations of cluster keys, and impossible numbers of processes."""

from satrap.config.checks.tables import kept
from satrap.config.keys.cluster import ClusterKeys
from satrap.config.keys.sections import Sections
from satrap.config.source import RecipeSource, dotted, refuse_beside
from satrap.errors import ConfigError


def check_cluster(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` if the exchange cannot use the recipe's processes."""
    cluster = sections.cluster
    _check_without_tables(sections, source)
    if sections.training.lookahead:
        _check_lookahead(sections, source)
    if cluster.exchange == "collective":
        _check_collective(sections, source)
    _check_placements(sections, source)
    _check_wire(sections, source)
    _check_addresses(sections, source)
    _check_launcher(sections, source)
    if cluster.exchange != "local":
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
        if cluster.embedding_workers:
            _check_embedding_workers(sections, source)
        return
    if sections.checkpoint.durability == "journal":
        raise ConfigError(
            "checkpoint.durability is journal, but cluster.exchange is local",
            where=source.where(("checkpoint", "durability")),
            why="a journal restores shard servers, but the local exchange has no shard servers",
            fix="set cluster.exchange to servers, or use checkpoint.every_steps instead of a journal",
        )
    for key, most in (("shards", 1), ("workers", 1), ("loaders", 0), ("embedding_workers", 0)):
        count = getattr(cluster, key)
        if count > most:
            raise ConfigError(
                f"cluster.{key} is {count}, but cluster.exchange is local",
                where=source.where(("cluster", key)),
                why="with cluster.exchange: local, one process holds all rows and trains alone",
                fix=f"set cluster.exchange to {'servers' if _has_rows(sections) else 'collective'}",
            )


def _has_rows(sections: Sections) -> bool:
    """Return whether shards could hold rows: of tables or, in async mode, of the network's weights."""
    return bool(kept(sections)) or sections.training.mode == "async"


def _check_without_tables(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for shards and embedding workers in a recipe without rows."""
    cluster, stored = sections.cluster, _has_rows(sections)
    why = "shards and embedding workers handle rows of tables, but the recipe has no tables"
    fix = "remove the key; set cluster.exchange to local for one process, or collective for several"
    conflicts = (
        (("cluster", "shards"), cluster.shards > 1 and not stored, why),
        (("cluster", "addresses"), bool(cluster.addresses) and not stored, why),
        (("cluster", "exchange"), cluster.exchange == "servers" and not stored, why),
        (("cluster", "embedding_workers"), cluster.embedding_workers > 0 and not kept(sections), why),
        (("checkpoint", "durability"), sections.checkpoint.durability == "journal" and not stored, why),
    )
    refuse_beside("a recipe without categorical features", conflicts, source, fix=fix)


def _check_addresses(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for keys that running shards at `cluster.addresses` do not support."""
    cluster = sections.cluster
    named, twice = len(cluster.addresses), len(set(cluster.addresses)) < len(cluster.addresses)
    if not named:
        return
    for path, wrong, why, fix in (
        (
            ("cluster", "exchange"),
            cluster.exchange != "servers",
            "cluster.addresses names shard servers, and only exchange: servers uses them",
            "set cluster.exchange to servers",
        ),
        (("cluster", "addresses"), twice, "an address is given twice", "name each shard once"),
        (
            ("cluster", "shards"),
            cluster.shards not in (1, named),
            f"there are {named} addresses",
            "remove cluster.shards",
        ),
        (
            ("checkpoint", "durability"),
            sections.checkpoint.durability == "journal",
            "shards that are already running have their own journals and restarts",
            "remove the key, and start the shards with satrap shard --journal FOLDER",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{dotted(path)} cannot be combined with cluster.addresses",
                where=source.where(path),
                why=why,
                fix=fix,
            )


def _check_launcher(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for keys of an unused launcher, and for processes that Ray cannot place."""
    cluster, default = sections.cluster, ClusterKeys()
    if cluster.launcher == "ray" and cluster.exchange == "local":
        raise ConfigError(
            "cluster.launcher is ray, but cluster.exchange is local",
            where=source.where(("cluster", "launcher")),
            why="Ray places shards and workers, but the local exchange runs in one process",
            fix="set cluster.exchange to servers or collective",
        )
    if cluster.launcher == "ray" and sections.training.device != "cpu" and cluster.resources.worker.gpu < 1:
        raise ConfigError(
            f"training.device is {sections.training.device}, but cluster.resources.worker.gpu is below 1",
            where=source.where(("training", "device")),
            why="Ray hides GPUs that a process did not reserve",
            fix="set cluster.resources.worker.gpu to 1",
        )
    for key in ("address", "resources", "wait") if cluster.launcher == "local" else ():
        if getattr(cluster, key) != getattr(default, key):
            raise ConfigError(
                f"cluster.{key} needs cluster.launcher: ray",
                where=source.where(("cluster", key)),
                why="the local launcher reserves no resources",
                fix=f"set cluster.launcher to ray, or remove cluster.{key}",
            )


def _check_wire(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for a wire format that GPU gradients do not support, and for an unused rank."""
    wire, device = sections.cluster.wire, sections.training.device
    dense = wire.dense
    if dense != "powersgd" and wire.dense_rank != type(wire)().dense_rank:
        raise ConfigError(
            "cluster.wire.dense_rank has no effect without cluster.wire.dense: powersgd",
            where=source.where(("cluster", "wire", "dense_rank")),
            why="only powersgd sends low-rank matrices",
            fix="remove cluster.wire.dense_rank, or set cluster.wire.dense to powersgd",
        )
    if dense not in ("float32", "powersgd", "sign") and device != "cpu":
        raise ConfigError(
            f"cluster.wire.dense: {dense} cannot be combined with training.device: {device}",
            where=source.where(("cluster", "wire", "dense")),
            why="gradients on a GPU are summed there, in float32",
            fix="remove one of the two keys",
        )


def _check_placements(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for placements of unknown tables, or that other keys do not support."""
    cluster = sections.cluster
    rows = kept(sections)
    tables = sorted(rows)
    for table in sorted(cluster.placements.keys() - set(tables)):
        raise ConfigError(
            f"cluster.placements names the unknown table {table!r}",
            where=source.where(("cluster", "placements", table)),
            fix=f"tables: {', '.join(tables) or 'none'}",
        )
    which = "eviction and admission would make the set of rows depend on the placement"
    part = "this memory is divided among the workers, but a worker would hold all rows of the table or none"
    exchange, placements = cluster.exchange, cluster.placements
    servers = exchange == "servers"
    whatever = {"row_wise"} | ({"auto"} if exchange == "collective" else set())  # auto obeys the other keys
    placed: dict[str, set[str]] = {"placement": {cluster.placement}, "placements": set(placements.values())}
    replicas = [table for table, placement in placements.items() if placement == "replicated"]
    for key, values in ((key, values - whatever) for key, values in placed.items() if values - whatever):
        held = exchange == "collective" or (servers and key == "placements" and values == {"replicated"})
        hot = "shard servers hold all rows except tables that cluster.placements sets to replicated"
        idle = servers and len(replicas) == len(tables)
        steps = "replicas need steps that all workers take together"
        by_table = placements if key == "placements" else dict.fromkeys(rows, cluster.placement) | placements
        spread = {name: rows[name] for name, placement in by_table.items() if placement in values}
        for wrong, other, why in (
            (not held, f"cluster.exchange: {exchange}", hot if servers else "one process holds all rows"),
            (idle, f"cluster.exchange: {exchange}", "all tables are replicated: shards would hold no rows"),
            (sections.training.mode == "async", "training.mode: async", steps),
            (
                cluster.embedding_workers > 0,
                "cluster.embedding_workers",
                "embedding workers need all rows at shards",
            ),
            *((True, dotted(path), which) for table in spread.values() for path in table.decided_by),
            *((True, f"tables.{name}.memory", part) for name in spread if rows[name].memory is not None),
        ):
            if wrong:
                raise ConfigError(
                    f"cluster.{key} cannot be combined with {other}",
                    where=source.where(("cluster", key)),
                    why=why,
                    fix=f"remove cluster.{key}, or change the other key",
                )


def _check_embedding_workers(sections: Sections, source: RecipeSource) -> None:
    norm = "the norm includes row gradients, but only the embedding worker sees them"
    conflicts = (
        (("training", "clip_norm"), sections.training.clip_norm is not None, norm),
        (
            ("dense", "microbatches"),
            (sections.dense.microbatches or 1) > 1,
            "embedding workers pool the rows of whole batches",
        ),
    )
    refuse_beside("cluster.embedding_workers", conflicts, source, fix="remove one of the two keys")


def _check_lookahead(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for keys that exact early lookups do not support."""
    cluster = sections.cluster
    which = "eviction and admission would make the set of rows depend on the lookahead"
    blind = cluster.exchange == "servers" and cluster.workers > 1
    conflicts = (
        (("training", "mode"), sections.training.mode != "sync", "hybrid and async lookups run ahead anyway"),
        (("cluster", "workers"), blind, "workers do not see the updates of other workers at shard servers"),
        (
            ("cluster", "embedding_workers"),
            cluster.embedding_workers > 0,
            "early pooling misses later updates",
        ),
        *((path, True, which) for table in kept(sections).values() for path in table.decided_by),
    )
    refuse_beside("training.lookahead", conflicts, source, fix="remove training.lookahead, or change the key")


def _check_collective(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for keys that the exchange collective does not support."""
    cluster, training = sections.cluster, sections.training
    conflicts = (
        (
            ("cluster", "shards"),
            cluster.shards > 1,
            "with exchange: collective, the workers hold the rows and there are no shard servers",
        ),
        (
            ("cluster", "embedding_workers"),
            cluster.embedding_workers > 0,
            "embedding workers need shard servers",
        ),
        (
            ("training", "mode"),
            training.mode == "async",
            "with exchange: collective, all workers take every step together",
        ),
        (
            ("checkpoint", "durability"),
            sections.checkpoint.durability == "journal",
            "a journal restores shard servers, but exchange: collective has no shard servers",
        ),
    )
    refuse_beside(
        "cluster.exchange: collective",
        conflicts,
        source,
        fix="remove the key, or set cluster.exchange to servers",
    )
