import pytest

from satrap.config.keys.cluster import ClusterKeys


@pytest.mark.parametrize(
    ("keys", "servers"),
    [
        ({"shards": 3}, 0),
        ({"shards": 3, "exchange": "servers"}, 3),
        ({"exchange": "servers", "addresses": ["one:70"]}, 0),
        ({"shards": 3, "exchange": "collective"}, 0),
    ],
)
def test_a_run_starts_servers_only_if_they_hold_the_rows_and_do_not_run_yet(
    keys: object, servers: int
) -> None:
    assert ClusterKeys.model_validate(keys).servers == servers
