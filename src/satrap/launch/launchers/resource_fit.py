"""Resources that the roles of a run need, and how many roles fit on a cluster."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from satrap.config.keys.cluster import ClusterKeys, ResourcesKeys
from satrap.runtime.formatting import size

Amounts = Mapping[str, float]
"""Resource -> amount, by Ray's names: CPU, GPU, memory (bytes), or custom names."""


def asked(keys: ClusterKeys, shards: Collection[int] | None = None) -> dict[str, Amounts]:
    """Return the resources of each role by name, in the order in which roles are started.

    A shard server needs `memory` only if the recipe sets it. `shards` are the numbers of the shard servers,
    if the run starts any; default: from the recipe.
    """
    numbers = range(keys.servers) if shards is None or not keys.servers else sorted(shards)
    kinds: tuple[tuple[str, Collection[int], ResourcesKeys], ...] = (
        ("shard", numbers, keys.resources.shard),
        ("loader", range(keys.loaders), keys.resources.loader),
        ("embedding worker", range(keys.embedding_workers), keys.resources.embedding_worker),
        ("worker", range(keys.workers), keys.resources.worker),
    )
    roles: dict[str, Amounts] = {}
    for kind, indices, resources in kinds:
        amounts = {
            "CPU": resources.cpu,
            "GPU": resources.gpu,
            "memory": float(resources.memory or 0),
            **resources.custom,
        }
        positive = {name: amount for name, amount in amounts.items() if amount}
        roles |= {f"{kind} {number}": positive for number in indices}
    return roles


def total(nodes: Iterable[Amounts]) -> dict[str, float]:
    """Return the sum over all nodes."""
    amounts: Counter[str] = Counter()
    for node in nodes:
        amounts.update(node)
    return dict(amounts)


def fitting(roles: Mapping[str, Amounts], nodes: Iterable[Amounts]) -> set[str]:
    """Return the names of roles that fit. Roles are placed in order, each on the first node with room."""
    free = [dict(node) for node in nodes]
    fit = set()
    for name, amounts in roles.items():
        node = next((node for node in free if _covers(node, amounts)), None)
        if node is not None:
            fit.add(name)
            for resource, amount in amounts.items():
                node[resource] -= amount
    return fit


def _covers(node: Amounts, amounts: Amounts) -> bool:
    return all(node.get(resource, 0.0) >= amount for resource, amount in amounts.items())


def by_kind(roles: Mapping[str, Amounts], fit: set[str]) -> str:
    """Return how many roles of each kind fit, and their resources; kinds that do not fit come first.

    For example "shard: 30 of 40 fit, each needs 1 CPU and 64 GiB; worker: 8 of 8".
    """
    kinds = {name.rpartition(" ")[0]: amounts for name, amounts in roles.items()}
    count = Counter(name.rpartition(" ")[0] for name in roles)
    placed = Counter(name.rpartition(" ")[0] for name in fit)
    lines = []
    for kind, amounts in sorted(kinds.items(), key=lambda item: placed[item[0]] == count[item[0]]):
        needs = "" if placed[kind] == count[kind] else f" fit, each needs {words(amounts)}"
        lines.append(f"{kind}: {placed[kind]} of {count[kind]}{needs}")
    return "; ".join(lines)


def words(amounts: Amounts) -> str:
    """Return amounts as "2 CPU and 64 GiB", in their order."""
    texts = [
        size(amount) if name == "memory" else f"{amount:g} {name}" for name, amount in amounts.items()
    ] or ["nothing"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def relevant(amounts: Amounts, roles: Mapping[str, Amounts]) -> dict[str, float]:
    """Return the amounts of the resources that some role needs; 0 for missing ones."""
    names = dict.fromkeys(name for needs in roles.values() for name in needs)
    return {name: amounts.get(name, 0.0) for name in names}
