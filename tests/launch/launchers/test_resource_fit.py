"""What roles ask for, and who has room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from satrap.config.keys.cluster import ClusterKeys
from satrap.launch.launchers.resource_fit import asked, by_kind, fitting, relevant, total, words

GIB = 1024**3
KEYS = ClusterKeys.model_validate(
    {
        "exchange": "servers",
        "shards": 3,
        "workers": 2,
        "loaders": 1,
        "resources": {
            "shard": {"memory": "4GiB", "custom": {"disk": 1.0}},
            "worker": {"cpu": 2.0, "gpu": 1.0},
        },
    }
)


def test_each_role_asks_for_what_its_kind_does() -> None:
    found = asked(KEYS)
    assert list(found) == ["shard 0", "shard 1", "shard 2", "loader 0", "worker 0", "worker 1"]
    assert found["shard 2"] == {"CPU": 1, "memory": 4 * GIB, "disk": 1}
    assert found["loader 0"] == {"CPU": 1}
    assert found["worker 1"] == {"CPU": 2, "GPU": 1}
    assert asked(ClusterKeys(exchange="collective", workers=2)).keys() == {"worker 0", "worker 1"}
    assert list(asked(KEYS, [4, 1]))[:3] == ["shard 1", "shard 4", "loader 0"]
    assert asked(ClusterKeys(exchange="collective"), [0]).keys() == {"worker 0"}
    assert total(found.values()) == {"CPU": 8, "memory": 12 * GIB, "disk": 3, "GPU": 2}


def test_the_message_counts_role_by_role() -> None:
    nodes = [{"CPU": 4.0, "memory": 9.0 * GIB, "disk": 9.0}, {"CPU": 3.0, "GPU": 1.0}]
    fit = fitting(asked(KEYS), nodes)
    assert fit == {"shard 0", "shard 1", "loader 0", "worker 0"}
    assert by_kind(asked(KEYS), fit) == (
        "shard: 2 of 3 fit, each needs 1 CPU, 4.0 GiB and 1 disk; worker: 1 of 2 fit, each needs 2 CPU "
        "and 1 GPU; loader: 1 of 1"
    )
    assert words(relevant(nodes[1], asked(KEYS))) == "3 CPU, 0 B, 0 disk and 1 GPU"
    assert words({}) == "nothing"


AMOUNTS = st.dictionaries(st.sampled_from(["CPU", "memory", "x"]), st.integers(1, 5).map(float), max_size=3)


@given(st.lists(AMOUNTS, max_size=8), st.lists(AMOUNTS, max_size=4))
def test_no_node_holds_more_than_it_has(asks: list[dict[str, float]], nodes: list[dict[str, float]]) -> None:
    """What fits together fits in the sum of the nodes; what was left out fits on no empty cluster alone or
    finds others there."""
    roles = {f"shard {number}": one for number, one in enumerate(asks)}
    fit = fitting(roles, nodes)
    have, used = total(nodes), total(roles[name] for name in fit)
    assert all(amount <= have.get(resource, 0) for resource, amount in used.items())
    for name, one in roles.items():
        if not fit:
            assert not any(all(node.get(r, 0) >= n for r, n in one.items()) for node in nodes), name
