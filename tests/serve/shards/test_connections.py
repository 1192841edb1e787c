"""The shards as a server sees them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.rpc import create_key, read_key
from satrap.serve.http.errors import RequestError
from satrap.serve.shards.connections import ANSWER_SECONDS, ShardLinks
from tests.serve.followed import eventually
from tests.serve.sharding import serving, shard


def test_addresses_are_checked_before_anything_is_asked(tmp_path: Path) -> None:
    for addresses, error in (
        (["127.0.0.1:7000", "127.0.0.1:7000"], "an address is repeated"),
        (["nowhere"], "not HOST:PORT"),
        (["10.0.0.1:7000"], "needs a key"),
    ):
        with pytest.raises(ConfigError, match=error):
            ShardLinks(addresses, None)
    create_key(tmp_path / "key")
    ShardLinks(["10.0.0.1:7000"], read_key(tmp_path / "key"))


def test_what_all_shards_have_is_common_and_who_is_away_is_named(run: RunFolder) -> None:
    said: list[str] = []
    with serving(shard(run.path, 0, 2, follow=False)) as first:
        second = shard(run.path, 1, 2, follow=False)
        with ShardLinks([first.server.address, second.server.address], None) as links:
            with serving(second):
                links.wait(bool, said.append)
                [version] = links.common()
                assert links.trouble(version.id) == ""
                assert "no longer has the served version; it has steps" in links.trouble("another")
                with pytest.raises(RequestError, match="no longer has"):
                    links.links[0].ask([], "another")
                others = ShardLinks([first.server.address, second.server.address], None)
                others.links[0].groups = others.links[1].groups = links.groups()
                assert others.groups() == links.groups()
                others.links[1].groups = []
                with pytest.raises(ConfigError, match="differently"):
                    others.groups()
            begun = time.monotonic()
            eventually(lambda: links.trouble(version.id) != "")
            assert time.monotonic() - begun < 3 * ANSWER_SECONDS
            assert f"shard 1 at {second.server.address} has been unreachable for" in links.trouble(version.id)
            assert links.common() == []
            with pytest.raises(RequestError, match="unreachable") as caught:
                links.links[1].ask([], version.id)
            assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
            assert links.links[0].ask([], version.id) is not None
            again = shard(run.path, 1, 2, follow=False, listen=second.server.address)
            with serving(again):
                eventually(lambda: links.trouble(version.id) == "")
                assert links.common() == [version]


def test_shards_in_the_wrong_order_are_an_error_at_once(run: RunFolder) -> None:
    with (
        serving(shard(run.path, 0, 2, follow=False)) as first,
        serving(shard(run.path, 1, 2, follow=False)) as second,
        ShardLinks([second.server.address, first.server.address], None) as links,
        pytest.raises(ConfigError, match="for another shard"),
    ):
        links.wait(bool, lambda _: None)
