"""Settings that cannot be combined: one table for recipes, for Python's arguments, and for the documentation.

Settings are plain values by the key of a recipe. Errors in Python name the argument instead, see
`python_name`. A condition is a text: `training.mode: async` holds if the setting has this value,
`training.clip_norm` if it is neither empty nor harmless (see `HARMLESS`), and `a | b` if a or b holds. With
an asterisk for the value, errors show the value.

Not in the table, because it needs an object: batch normalization in a network, optimizers that need whole
weights, exchanges that cannot look ahead. The fields of one feature are in `schema`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from satrap.errors import ConfigError

NOT, NEEDS, IDLE, BUT = "cannot be combined with", "needs", "has no effect without", "but"
"""Kinds of rules: the two conditions exclude each other (NOT, BUT), or the first one requires the other."""

HARMLESS: dict[str, Any] = {
    "training.mode": "sync",
    "training.epochs": 1,
    "training.device": "cpu",
    "training.ranking.among": "group",
    "embedding.device": "cpu",
    "dense.precision": "float32",
    "dense.microbatches": 1,
    "TrainingOptions.microbatches": 1,
    "dense.mesh.tensor": 1,
    "dense.mesh.pipeline": 1,
    "dense.schedule": "1f1b",
    "cluster.shards": 1,
    "cluster.workers": 1,
    "cluster.placement": "row_wise",
    "cluster.wire.dense": "float32",
    "cluster.wire.dense_rank": 4,
}
"""Values, besides empty ones, with which a setting can be combined with everything."""

_PYTHON = {
    "dense.mesh.tensor": "mesh.tensor",
    "dense.mesh.pipeline": "mesh.pipeline",
    "dense.sharded": "mesh.sharded",
    "dense.offload.weights": "offload_weights",
    "cluster.embedding_workers": "embedding workers",
    "cluster.wire.dense": "wire.dense",
}


def python_name(key: str) -> str:
    """Return the argument of a recipe's key: `mode` for "training.mode"."""
    return _PYTHON.get(key, key.rpartition(".")[2])


class Rule(NamedTuple):
    """Two conditions: the first excludes, or requires, the other.

    Attributes:
        setting: the condition at whose setting an error points.
        other: the other condition.
        why: the reason.
        fix: advice, default to remove the one or change the other. `{key}` stands for a setting's name.
        kind: NOT, NEEDS, IDLE or BUT.
        when: the rule applies only if this condition holds as well.
    """

    setting: str
    other: str
    why: str
    fix: str = ""
    kind: str = NOT
    when: str = ""


NO_TABLES = "a recipe without categorical features"
SEVERAL, POOLS, TORCHRUN = "several workers", "an exchange that pools rows", "torchrun"
PAIRS, IMPLICIT = "a loss of pairs", "an implicit label"
PLACED = "eviction or admission of such a table", "memory of such a table"
"""Settings without a key: tables, processes and exchanges."""

TABLE = """
cluster.shards | cluster.addresses | cluster.exchange: servers | checkpoint.durability: journal NOT WITH a
    recipe without categorical features IF training.mode: sync | training.mode: hybrid
    BECAUSE shards hold the rows of tables, and in async mode the network's weights
    -> remove the key; set {cluster.exchange} to local for one process, or collective for several
cluster.embedding_workers NOT WITH a recipe without categorical features
    BECAUSE embedding workers pool the rows of tables
    -> remove the key
training.mode: hybrid | training.mode: async NOT WITH training.lookahead
    BECAUSE in hybrid and async, lookups run ahead anyway, by the staleness
cluster.embedding_workers NOT WITH training.lookahead
    BECAUSE early pooling misses later updates
embedding.eviction | embedding.admission NOT WITH training.lookahead
    BECAUSE the set of rows would depend on the lookahead
cluster.workers NOT WITH training.lookahead IF cluster.exchange: servers
    BECAUSE workers do not see the updates of other workers at shard servers
cluster.shards NOT WITH cluster.exchange: collective
    BECAUSE the workers hold the rows, without shard servers
    -> remove the key, or set {cluster.exchange} to servers
cluster.embedding_workers NOT WITH cluster.exchange: collective
    BECAUSE embedding workers need shard servers
    -> remove the key, or set {cluster.exchange} to servers
training.mode: async NOT WITH cluster.exchange: collective
    BECAUSE workers that hold rows take every step together, and async has no common steps
    -> remove the key, or set {cluster.exchange} to servers
checkpoint.durability: journal NOT WITH cluster.exchange: collective
    BECAUSE a journal restores shard servers, and there are none
    -> remove the key, or set {cluster.exchange} to servers
embedding.device NOT WITH cluster.exchange: servers
    BECAUSE shard servers hold their rows in RAM
    -> set {cluster.exchange} to local
embedding.device NOT WITH training.mode: async
    BECAUSE in async mode the weights of the network are rows, which the network reads from RAM
embedding.device NEEDS training.device
    BECAUSE the network reads the rows where they are
    -> set {training.device} to the same device
cluster.placement | cluster.placements NOT WITH cluster.exchange: local
    BECAUSE one process holds all rows
cluster.placement | cluster.placements: divided NOT WITH cluster.exchange: servers
    BECAUSE shard servers hold all rows except tables that cluster.placements sets to replicated
cluster.placement | cluster.placements NOT WITH training.mode: async
    BECAUSE replicas need steps that all workers take together
cluster.placement | cluster.placements NOT WITH cluster.embedding_workers
    BECAUSE embedding workers need all rows at shards
cluster.placement | cluster.placements NOT WITH eviction or admission of such a table
    BECAUSE the set of rows would depend on the placement
cluster.placement | cluster.placements NOT WITH memory of such a table
    BECAUSE workers share this memory, but a worker would hold all rows of the table or none
cluster.wire.dense_rank IDLE WITHOUT cluster.wire.dense: powersgd
    BECAUSE only powersgd sends low-rank matrices
cluster.wire.dense: * NOT WITH training.device: * IF cluster.wire.dense: int8 | cluster.wire.dense:
    bfloat16 | cluster.wire.dense: float16
    BECAUSE gradients on a GPU are summed there, in float32
cluster.exchange: local | cluster.exchange: collective NOT WITH cluster.addresses
    BECAUSE only exchange: servers uses shard servers
    -> set {cluster.exchange} to servers
checkpoint.durability: journal NOT WITH cluster.addresses
    BECAUSE shards that are already running have their own journals and restarts
    -> remove {}, and start the shards with satrap shard --journal FOLDER
cluster.launcher: ray BUT cluster.exchange: local
    BECAUSE Ray places shards and workers, but the local exchange is one process
    -> set {cluster.exchange} to servers or collective
checkpoint.durability: journal BUT cluster.exchange: local
    BECAUSE a journal restores shard servers; snapshots (checkpoint.every_steps) need none
    -> set {cluster.exchange} to servers
cluster.shards | cluster.workers | cluster.loaders | cluster.embedding_workers BUT cluster.exchange: local
    IF training.mode: async
    BECAUSE with cluster.exchange: local, one process holds all rows and trains alone
    -> set {cluster.exchange} to servers
cluster.shards | cluster.workers | cluster.loaders | cluster.embedding_workers BUT cluster.exchange: local
    IF a recipe without categorical features
    BECAUSE with cluster.exchange: local, one process holds all rows and trains alone
    -> set {cluster.exchange} to collective
cluster.shards | cluster.workers | cluster.loaders | cluster.embedding_workers BUT cluster.exchange: local
    BECAUSE with cluster.exchange: local, one process holds all rows and trains alone
    -> set {cluster.exchange} to servers
cluster.address | cluster.resources | cluster.wait NEEDS cluster.launcher: ray
    BECAUSE the local launcher reserves no resources
training.clip_norm NOT WITH cluster.embedding_workers
    BECAUSE the norm includes row gradients, which only the embedding worker sees
dense.microbatches NOT WITH cluster.embedding_workers
    BECAUSE embedding workers pool the rows of whole batches
training.clip_norm | training.mode: hybrid | training.mode: async NOT WITH an exchange that pools rows
    BECAUSE a worker has neither rows of lookups in flight nor gradients of rows
    -> give CollectiveExchange, or WorkerContext.from_environment, pools=False
dense.schedule | dense.stages | dense.stages_per_rank IDLE WITHOUT dense.mesh.pipeline
    BECAUSE without a pipeline, the network has no stages
training.mode: async NOT WITH dense.mesh.tensor | dense.mesh.pipeline | dense.sharded
    BECAUSE in async mode, each worker pulls the weights of the whole network from the store
cluster.wire.dense NOT WITH dense.mesh.tensor | dense.mesh.pipeline | dense.sharded
    BECAUSE PyTorch sums gradients of a sharded network in float32
dense.compile NOT WITH dense.mesh.tensor | dense.mesh.pipeline | dense.sharded
    BECAUSE torch.compile does not support sharded layers and pipeline stages
cluster.embedding_workers NOT WITH dense.mesh.tensor | dense.mesh.pipeline | dense.sharded
    BECAUSE this combination is not supported yet
cluster.loaders NOT WITH dense.mesh.tensor | dense.mesh.pipeline
    BECAUSE workers of one copy train the same batches, but a loader delivers a batch once
training.lookahead NOT WITH dense.mesh.tensor | dense.mesh.pipeline
    BECAUSE this combination is not supported yet
cluster.placements: replicated NOT WITH dense.mesh.tensor | dense.mesh.pipeline IF cluster.exchange: servers
    BECAUSE this combination is not supported yet
TrainingOptions.microbatches NOT WITH dense.mesh.pipeline
    BECAUSE a pipeline has its own setting, Mesh.microbatches
    -> leave {} at 1
an implicit label NEEDS training.loss
    BECAUSE the label is 1 in all rows, so a loss must compare the item of a row with other items
    -> set {training.loss} to sampled_softmax or bpr
a loss of pairs NOT WITH dense.microbatches | TrainingOptions.microbatches
    BECAUSE the items of a batch are compared with each other
    -> set microbatches to 1
a loss of pairs NOT WITH training.mode: async
    BECAUSE workers compare their queries with the items of all workers, step by step
    -> set {training.mode} to hybrid or sync
a loss of pairs NOT WITH cluster.embedding_workers | embedding.device | an exchange that pools rows |
    dense.mesh.tensor | dense.mesh.pipeline | dense.sharded | cluster.loaders
    BECAUSE this combination is not supported yet
training.loss.logq NOT WITH training.loss.listed
    BECAUSE how often an item is listed is not counted
dense.compile NOT WITH dense.checkpoint_activations
    BECAUSE PyTorch itself chooses which activations a compiled block keeps
dense.offload NOT WITH training.mode: async
    BECAUSE in async mode the optimizer state is in the embedding store
dense.offload.optimizer: * IDLE WITHOUT training.device: cuda | training.device IF
    dense.offload.optimizer: cpu
    BECAUSE on the device cpu, the optimizer state is already in host memory
    -> remove dense.offload, or set {} to disk
dense.offload.optimizer: * NEEDS dense.offload.folder IF dense.offload.optimizer: disk
    BECAUSE the optimizer state is stored in files of this folder
    -> set {dense.offload.folder} to a folder on a fast disk
dense.offload.folder IDLE WITHOUT dense.offload.optimizer: disk
    BECAUSE the state is in host memory
dense.offload.weights NOT WITH training.mode: async | dense.mesh.tensor | dense.mesh.pipeline |
    dense.sharded | dense.compile
    BECAUSE this combination is not supported yet
dense.offload.weights NOT WITH several workers | dense.precision: * | dense.checkpoint_activations IF
    training.device
    BECAUSE on a GPU, this combination is not supported yet
training.ranking.among: items NOT WITH cluster.embedding_workers | dense.mesh.tensor |
    dense.mesh.pipeline | dense.sharded
    BECAUSE the vectors of all items need the whole network and single rows
training.ranking.among: items NEEDS data.items IF data.stream
    BECAUSE a log may never end, so its items are not known before
    -> set {data.items} to a file with one row per item
data.items IDLE WITHOUT training.ranking.among: items
    BECAUSE only ranking among items needs all items
training.follow NEEDS data.stream
    BECAUSE files are read to their end; only a log can grow
data.balance NEEDS data.shuffle
    BECAUSE balancing works on the rows of the shuffle buffer
data.train NOT WITH data.stream
    BECAUSE a run reads either files or a log
training.epochs NOT WITH data.stream
    BECAUSE events are read only once
data.shuffle | data.buffer_rows | data.balance NOT WITH data.stream
    BECAUSE events are read in the order of the log
data.split NOT WITH data.stream
    BECAUSE each batch of a log is scored first and then trained on
data.join NOT WITH data.stream
    BECAUSE only rows of files can be joined
tune NOT WITH data.stream
    BECAUSE satrap tune reads the rows several times
data.stream.labels | data.stream.label_window | data.stream.id NEEDS data.stream.labels
    BECAUSE late labels are matched to events by id, and label_window is measured by time
    -> give labels, label_window, id and time in data.stream, or only time
data.stream.labels | data.stream.label_window | data.stream.id NEEDS data.stream.label_window
    BECAUSE late labels are matched to events by id, and label_window is measured by time
    -> give labels, label_window, id and time in data.stream, or only time
data.stream.labels | data.stream.label_window | data.stream.id NEEDS data.stream.id
    BECAUSE late labels are matched to events by id, and label_window is measured by time
    -> give labels, label_window, id and time in data.stream, or only time
data.stream.labels | data.stream.label_window | data.stream.id NEEDS data.stream.time
    BECAUSE late labels are matched to events by id, and label_window is measured by time
    -> give labels, label_window, id and time in data.stream, or only time
data.split.validation NOT WITH data.validation
    BECAUSE the rows of a part of the data come from one place only
data.split.test NOT WITH data.test
    BECAUSE the rows of a part of the data come from one place only
cluster.loaders NOT WITH data.stream
    BECAUSE each worker reads its own partitions
dense.mesh.tensor | dense.mesh.pipeline NOT WITH data.stream
    BECAUSE workers of a copy must read the same batches, but batches of a log depend on arrival times
tables.<name>.optimizer | tables.<name>.initial_scale | tables.<name>.admission NOT WITH
    tables.<name>.frozen: *
    BECAUSE rows of a frozen table never change, and no others are created
cluster.exchange: local NOT WITH torchrun
    BECAUSE torchrun has started several processes, but the local exchange trains in one process
    -> set {cluster.exchange} to collective, or to servers with cluster.addresses
cluster.exchange: servers NEEDS cluster.addresses IF torchrun
    BECAUSE torchrun does not start shards
    -> start shards with satrap shard, and set {cluster.addresses}
cluster.loaders | cluster.embedding_workers NOT WITH torchrun
    BECAUSE torchrun starts workers only
    -> remove {}
"""
"""The rules. A line that is not indented has the conditions; below it are the reason and, after an arrow,
advice."""

_KINDS = {"NOT WITH": NOT, "NEEDS": NEEDS, "IDLE WITHOUT": IDLE, "BUT": BUT}


def _rules() -> Iterator[Rule]:
    for block in re.split(r"\n(?=\S)", TABLE.strip()):
        head, _, fix = " ".join(block.split()).partition(" -> ")
        parts = re.fullmatch(r"(.*) (NOT WITH|NEEDS|IDLE WITHOUT|BUT) (.*?)(?: IF (.*?))? BECAUSE (.*)", head)
        assert parts is not None, block
        yield Rule(parts[1], parts[3], parts[5], fix, _KINDS[parts[2]], parts[4] or "")


RULES = tuple(_rules())


def _setting(condition: str) -> str:
    return condition.partition(": ")[0]


SETTINGS = dict.fromkeys(
    _setting(each)
    for rule in RULES
    for condition in (rule.setting, rule.other, rule.when)
    for each in condition.split(" | ")
    if each
)
"""All settings that rules name, in the order of the rules."""


def check(
    settings: Mapping[str, Any],
    name: Callable[[str], str] = python_name,
    where: str | Callable[[str], str] = "",
) -> None:
    """Raise `ConfigError` for the first rule that settings break.

    Args:
        settings: values by key; missing ones are harmless.
        name: returns the name of a setting in errors.
        where: the place in errors, or a function that returns the place of a setting.
    """
    assert settings.keys() <= SETTINGS.keys()
    for rule in RULES:
        if not (first := _holding(rule.setting, settings)) or (
            rule.when and not _holding(rule.when, settings)
        ):
            continue
        second, required = _holding(rule.other, settings), rule.kind in (NEEDS, IDLE)
        if bool(second) == required:
            continue
        setting, other = _setting(first), second or rule.other.partition(" | ")[0]
        if rule.kind == BUT:
            what = ", but ".join(f"{name(each)} is {settings[each]}" for each in (setting, _setting(other)))
        else:
            # The place of a key shows its value; an argument has no place.
            shown = first if name is python_name or first.endswith("*") else setting
            what = f"{_shown(shown, settings, name)} {rule.kind} {_shown(other, settings, name)}"
        fix = rule.fix or f"remove {name(setting)}, or change {name(_setting(other))}"
        fix = re.sub(r"\{(.*?)\}", lambda key, this=setting: name(key[1] or this), fix)  # type: ignore[misc]
        raise ConfigError(
            what, where=where if isinstance(where, str) else where(setting), why=rule.why, fix=fix
        )


def check_frozen(given: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` if a frozen table has a setting that has no meaning for it."""
    settings = {f"tables.<name>.{key}": value for key, value in given.items()}
    check(settings | {"tables.<name>.frozen": True}, where=where)


def _holding(condition: str, settings: Mapping[str, Any]) -> str:
    """Return the first alternative of a condition that holds; empty: none."""
    for each in condition.split(" | "):
        key, _, expected = each.partition(": ")
        value = settings.get(key)
        if (str(value) == expected) if expected not in ("", "*") else (value and value != HARMLESS.get(key)):
            return each
    return ""


def _shown(condition: str, settings: Mapping[str, Any], name: Callable[[str], str]) -> str:
    key, colon, value = condition.partition(": ")
    return name(key) + colon + (str(settings[key]).replace("True", "true") if value == "*" else value)


def markdown() -> str:
    """Return the rules as the table of the documentation."""
    lines = ["| setting | | other setting | reason |", "| --- | --- | --- | --- |"]
    for kind, setting, other, when, why in dict.fromkeys(
        (rule.kind, rule.setting, rule.other, rule.when, rule.why) for rule in RULES
    ):
        relation = "cannot be combined with" if kind == BUT else kind
        only = f", if {_listed(when)}" if when else ""
        lines.append(f"| {_listed(setting)} | {relation} | {_listed(other)}{only} | {why} |")
    return "\n".join([*lines, ""])


def _listed(condition: str) -> str:
    return " or ".join(f"`{each.removesuffix(': *')}`" for each in condition.split(" | "))
