"""Refuses keys of the cluster that do not go together, and impossible numbers of processes."""

from satrap.config.cluster import Cluster
from satrap.config.keys import Sections
from satrap.config.source import Source, dotted, refuse_beside
from satrap.config.tables import kept
from satrap.errors import ConfigError


def check_cluster(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` if the exchange cannot use the processes that the recipe asks for."""
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
                    f"cluster.{key} is {count}, but there are {cluster.workers} workers",
                    where=source.where(("cluster", key)),
                    why=why,
                    fix=f"use as many {key.replace('_', ' ')} as workers, or fewer",
                )
        if cluster.embedding_workers:
            _check_embedding_workers(sections, source)
        return
    if sections.checkpoint.durability == "journal":
        raise ConfigError(
            "checkpoint.durability is journal, but cluster.exchange is local",
            where=source.where(("checkpoint", "durability")),
            why="a journal restores shard servers, and the local exchange has none",
            fix="set cluster.exchange to servers, or remove the key and use checkpoint.every_steps",
        )
    for key, most in (("shards", 1), ("workers", 1), ("loaders", 0), ("embedding_workers", 0)):
        count = getattr(cluster, key)
        if count > most:
            raise ConfigError(
                f"cluster.{key} is {count}, but cluster.exchange is local",
                where=source.where(("cluster", key)),
                why="with the local exchange one process holds all rows and trains alone",
                fix=f"set cluster.exchange to {'servers' if _has_rows(sections) else 'collective'}",
            )


def _has_rows(sections: Sections) -> bool:
    """Return whether there are rows that shards could hold: of tables or, in async, the network's weights."""
    return bool(kept(sections)) or sections.training.mode == "async"


def _check_without_tables(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for processes that would work on rows, where there are none."""
    cluster, stored = sections.cluster, _has_rows(sections)
    why = "shards and embedding workers work on rows of tables, and there are no tables"
    fix = "remove the key; cluster.exchange: local trains in one process, collective in several"
    found = (
        (("cluster", "shards"), cluster.shards > 1 and not stored, why),
        (("cluster", "addresses"), bool(cluster.addresses) and not stored, why),
        (("cluster", "exchange"), cluster.exchange == "servers" and not stored, why),
        (("cluster", "embedding_workers"), cluster.embedding_workers > 0 and not kept(sections), why),
        (("checkpoint", "durability"), sections.checkpoint.durability == "journal" and not stored, why),
    )
    refuse_beside("features that are all numbers", found, source, fix=fix)


def _check_addresses(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for what does not go with shards that the run does not start."""
    cluster = sections.cluster
    named, twice = len(cluster.addresses), len(set(cluster.addresses)) < len(cluster.addresses)
    if not named:
        return
    for path, wrong, why, fix in (
        (
            ("cluster", "exchange"),
            cluster.exchange != "servers",
            "they are addresses of shard servers",
            "set cluster.exchange to servers",
        ),
        (("cluster", "addresses"), twice, "a shard is named twice", "name each shard once"),
        (
            ("cluster", "shards"),
            cluster.shards not in (1, named),
            f"there are {named} addresses",
            "remove cluster.shards",
        ),
        (
            ("checkpoint", "durability"),
            sections.checkpoint.durability == "journal",
            "who starts a shard gives it a journal and starts it again",
            "use satrap shard --journal FOLDER, and remove the key",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{dotted(path)} does not go with cluster.addresses",
                where=source.where(path),
                why=why,
                fix=fix,
            )


def _check_launcher(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for keys of a launcher that is not used, and for what Ray cannot place."""
    cluster, default = sections.cluster, Cluster()
    if cluster.launcher == "ray" and cluster.exchange == "local":
        raise ConfigError(
            "cluster.launcher is ray, but cluster.exchange is local",
            where=source.where(("cluster", "launcher")),
            why="with the local exchange there is one process, and nothing to place",
            fix="set cluster.exchange to servers or collective",
        )
    if cluster.launcher == "ray" and sections.training.device != "cpu" and cluster.resources.worker.gpu < 1:
        raise ConfigError(
            f"training.device is {sections.training.device}, but workers ask Ray for no GPU",
            where=source.where(("training", "device")),
            why="Ray shows a process only the devices that it asked for",
            fix="set cluster.resources.worker.gpu to 1",
        )
    for key in ("address", "resources", "wait") if cluster.launcher == "local" else ():
        if getattr(cluster, key) != getattr(default, key):
            raise ConfigError(
                f"cluster.{key} needs cluster.launcher: ray",
                where=source.where(("cluster", key)),
                why="processes of this machine are started without asking anybody",
                fix=f"set cluster.launcher to ray, or remove cluster.{key}",
            )


def _check_wire(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for a short format that the network's gradients cannot have on a GPU."""
    wire, device = sections.cluster.wire, sections.training.device
    dense = wire.dense
    if dense != "powersgd" and wire.dense_rank != type(wire)().dense_rank:
        raise ConfigError(
            "cluster.wire.dense_rank has no effect without cluster.wire.dense: powersgd",
            where=source.where(("cluster", "wire", "dense_rank")),
            why="other formats send no matrices",
            fix="remove cluster.wire.dense_rank, or set cluster.wire.dense to powersgd",
        )
    if dense not in ("float32", "powersgd", "sign") and device != "cpu":
        raise ConfigError(
            f"cluster.wire.dense: {dense} does not go with training.device: {device}",
            where=source.where(("cluster", "wire", "dense")),
            why="gradients on a GPU are added there, in float32",
            fix="remove one of the two keys",
        )


def _check_placements(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for placements of unknown tables, or that do not go with the other keys."""
    cluster = sections.cluster
    rows = kept(sections)
    tables = sorted(rows)
    for table in sorted(cluster.placements.keys() - set(tables)):
        raise ConfigError(
            f"cluster.placements names {table!r}, which is no table",
            where=source.where(("cluster", "placements", table)),
            fix=f"tables: {', '.join(tables) or 'none'}",
        )
    which = "which rows there are would depend on who holds them"
    part = "each worker has its share of this memory, and would hold all rows or none"
    exchange, placements = cluster.exchange, cluster.placements
    servers = exchange == "servers"
    whatever = {"row_wise"} | ({"auto"} if exchange == "collective" else set())  # auto heeds the other keys
    placed: dict[str, set[str]] = {"placement": {cluster.placement}, "placements": set(placements.values())}
    replicas = [table for table, placement in placements.items() if placement == "replicated"]
    for key, values in ((key, values - whatever) for key, values in placed.items() if values - whatever):
        held = exchange == "collective" or (servers and key == "placements" and values == {"replicated"})
        hot = "shards hold the rows, but for tables that cluster.placements calls replicated"
        idle = servers and len(replicas) == len(tables)
        steps = "replicas change in steps that all workers take together"
        given = placements if key == "placements" else dict.fromkeys(rows, cluster.placement) | placements
        spread = {name: rows[name] for name, placement in given.items() if placement in values}
        for wrong, other, why in (
            (not held, f"cluster.exchange: {exchange}", hot if servers else "no worker holds rows"),
            (idle, f"cluster.exchange: {exchange}", "all tables are replicated: shards would hold nothing"),
            (sections.training.mode == "async", "training.mode: async", steps),
            (cluster.embedding_workers > 0, "cluster.embedding_workers", "these ask the shards for all rows"),
            *((True, dotted(path), which) for table in spread.values() for path in table.decided_by),
            *((True, f"tables.{name}.memory", part) for name in spread if rows[name].memory is not None),
        ):
            if wrong:
                raise ConfigError(
                    f"cluster.{key} does not go with {other}",
                    where=source.where(("cluster", key)),
                    why=why,
                    fix=f"remove cluster.{key}, or change the other key",
                )


def _check_embedding_workers(sections: Sections, source: Source) -> None:
    norm = "the norm includes gradients of rows, which a worker does not see"
    found = (
        (("training", "clip_norm"), sections.training.clip_norm is not None, norm),
        (
            ("dense", "microbatches"),
            (sections.dense.microbatches or 1) > 1,
            "they pool rows of whole batches",
        ),
    )
    refuse_beside("cluster.embedding_workers", found, source, fix="remove one of the two keys")


def _check_lookahead(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for what does not go with lookups that are made early and yet see all updates."""
    cluster = sections.cluster
    which = "which rows there are would depend on how early they are looked up"
    blind = cluster.exchange == "servers" and cluster.workers > 1
    found = (
        (("training", "mode"), sections.training.mode != "sync", "in other modes lookups run ahead already"),
        (("cluster", "workers"), blind, "a worker cannot know what others do to rows of shard servers"),
        (("cluster", "embedding_workers"), cluster.embedding_workers > 0, "they pool rows too early"),
        *((path, True, which) for table in kept(sections).values() for path in table.decided_by),
    )
    refuse_beside("training.lookahead", found, source, fix="remove training.lookahead, or change the key")


def _check_collective(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for what workers that hold the rows themselves cannot do."""
    cluster, training = sections.cluster, sections.training
    found = (
        (
            ("cluster", "shards"),
            cluster.shards > 1,
            "the workers hold the rows, and there are no shard servers",
        ),
        (
            ("cluster", "embedding_workers"),
            cluster.embedding_workers > 0,
            "there are no shard servers to ask",
        ),
        (
            ("training", "mode"),
            training.mode == "async",
            "workers that hold the rows take every step together",
        ),
        (
            ("checkpoint", "durability"),
            sections.checkpoint.durability == "journal",
            "a journal restores shard servers, and there are none",
        ),
    )
    refuse_beside(
        "cluster.exchange: collective",
        found,
        source,
        fix="remove the key, or set cluster.exchange to servers",
    )
