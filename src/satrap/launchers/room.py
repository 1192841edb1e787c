"""What the roles of a run ask of a cluster, and which of them have no room there."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from satrap.config.cluster import Cluster, Resources
from satrap.words import size

Amounts = Mapping[str, float]
"""Resource -> amount, by the names that Ray has for them: CPU, GPU, memory (bytes), or your own."""


def asked(keys: Cluster, shards: Collection[int] | None = None) -> dict[str, Amounts]:
    """Return what each role asks for, by the role's name, in the order in which roles are started.

    A shard server asks for `memory` only if the recipe says so. `shards` are their numbers, if the run
    starts any; default: those of the recipe.
    """
    numbers = range(keys.servers) if shards is None or not keys.servers else sorted(shards)
    kinds: tuple[tuple[str, Collection[int], Resources], ...] = (
        ("shard", numbers, keys.resources.shard),
        ("loader", range(keys.loaders), keys.resources.loader),
        ("embedding worker", range(keys.embedding_workers), keys.resources.embedding_worker),
        ("worker", range(keys.workers), keys.resources.worker),
    )
    found: dict[str, Amounts] = {}
    for kind, those, one in kinds:
        amounts = {"CPU": one.cpu, "GPU": one.gpu, "memory": float(one.memory or 0), **one.custom}
        positive = {name: amount for name, amount in amounts.items() if amount}
        found |= {f"{kind} {number}": positive for number in those}
    return found


def total(nodes: Iterable[Amounts]) -> dict[str, float]:
    """Return the sum over nodes."""
    amounts: Counter[str] = Counter()
    for node in nodes:
        amounts.update(node)
    return dict(amounts)


def fitting(roles: Mapping[str, Amounts], nodes: Iterable[Amounts]) -> set[str]:
    """Return the names of roles that fit: each, in order, is put on the first node with room for it."""
    left = [dict(node) for node in nodes]
    found = set()
    for name, amounts in roles.items():
        node = next((node for node in left if _covers(node, amounts)), None)
        if node is not None:
            found.add(name)
            for resource, amount in amounts.items():
                node[resource] -= amount
    return found


def _covers(node: Amounts, amounts: Amounts) -> bool:
    return all(node.get(resource, 0.0) >= amount for resource, amount in amounts.items())


def by_kind(roles: Mapping[str, Amounts], fit: set[str]) -> str:
    """Return how many roles of each kind fit, and what each asks for; kinds that lack room come first.

    For example "shard: 30 of 40 fit, each asks for 1 CPU and 64 GiB; worker: 8 of 8".
    """
    kinds = {name.rpartition(" ")[0]: amounts for name, amounts in roles.items()}
    count = Counter(name.rpartition(" ")[0] for name in roles)
    there = Counter(name.rpartition(" ")[0] for name in fit)
    lines = []
    for kind, amounts in sorted(kinds.items(), key=lambda one: there[one[0]] == count[one[0]]):
        asks = "" if there[kind] == count[kind] else f" fit, each asks for {words(amounts)}"
        lines.append(f"{kind}: {there[kind]} of {count[kind]}{asks}")
    return "; ".join(lines)


def words(amounts: Amounts) -> str:
    """Return amounts as "2 CPU and 64 GiB", the resources in their order."""
    texts = [
        size(amount) if name == "memory" else f"{amount:g} {name}" for name, amount in amounts.items()
    ] or ["nothing"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def relevant(amounts: Amounts, roles: Mapping[str, Amounts]) -> dict[str, float]:
    """Return the amounts of those resources that a role asks for; 0 of what is not there."""
    names = dict.fromkeys(name for asks in roles.values() for name in asks)
    return {name: amounts.get(name, 0.0) for name in names}
