"""Redis streams as a log, on a real server that is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from satrap.data.streams import RedisLog, read_stream
from satrap.errors import ConfigError, DataError
from tests.support.logs import SCHEMA, RedisServer, events, read_events, redis_server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as started:
        yield started


def test_each_entry_is_read_once_across_a_kill_of_the_server(server: RedisServer) -> None:
    log = RedisLog(server.url, ("a", "b"))
    for start in range(0, 200, 20):
        server.add("ab"[start // 20 % 2], events(start, 20))
    batches = read_stream(log, SCHEMA, batch_size=64, wait=0.2, follow=True, time="t").batches()
    found = [next(batches)]
    server.kill()
    server.start()
    server.add("a", events(200, 10))
    while len(read_events(found)) < 210:
        found.append(next(batches))
    assert sorted(read_events(found)) == list(range(210))
    assert found[0] is not None
    rest = read_stream(log, SCHEMA, batch_size=64).batches(0, found[0].position)
    assert sorted(read_events([found[0], *rest])) == list(range(210))


def test_workers_share_the_streams(server: RedisServer) -> None:
    for number in range(3):
        server.add(f"s{number}", events(10 * number, 10))
    log, parts = RedisLog(server.url, ("s0", "s1", "s2")), []
    for worker in range(4):
        share = read_stream(log, SCHEMA).with_options(worker=worker, workers=4)
        parts.append(read_events(share.batches()))
    assert parts == [list(range(10)), list(range(10, 20)), list(range(20, 30)), []]


def test_entries_that_are_gone_are_an_error(server: RedisServer) -> None:
    log = RedisLog(server.url, ("trimmed",))
    server.add("trimmed", events(0, 100))
    stream = read_stream(log, SCHEMA, batch_size=10)
    first = next(stream.batches())
    assert first is not None
    server.client.xtrim("trimmed", maxlen=90, approximate=False)  # as far as it was read
    assert read_events(stream.batches(0, first.position)) == list(range(10, 100))
    server.client.xtrim("trimmed", maxlen=50, approximate=False)
    with pytest.raises(DataError, match=r"40 later entries were removed, and .* is the first") as caught:
        next(stream.batches(0, first.position))
    assert str(first.position["offsets"]["trimmed"][1][0]) in str(caught.value)
    assert read_events(stream.batches()) == list(range(50, 100))  # a new run begins with what is there
    server.client.delete("trimmed")
    with pytest.raises(DataError, match="the stream does not exist any more"):
        next(stream.batches(0, first.position))
    server.client.xadd("trimmed", {"x": 1, "y": 1, "u": 1}, id="1-1")
    with pytest.raises(DataError, match="the newest entry is 1-1"):
        next(stream.batches(0, first.position))


def test_values_that_cannot_be_used_are_named(server: RedisServer) -> None:
    number = server.client.xadd("bad", {"x": "two", "y": 1, "u": 1}).decode()
    with pytest.raises(DataError, match="is not a number") as caught:
        list(read_stream(RedisLog(server.url, ("bad",)), SCHEMA).batches())
    assert f"stream bad, offset {number}, column 'x'" in str(caught.value)
    server.client.xadd("bytes", {"x": 1, "y": 1, "u": b"\xff"})
    with pytest.raises(DataError, match="is not UTF-8"):
        list(read_stream(RedisLog(server.url, ("bytes",)), SCHEMA).batches())
    server.client.set("text", "no stream")
    with pytest.raises(DataError, match="cannot be read: WRONGTYPE"):
        list(read_stream(RedisLog(server.url, ("text",)), SCHEMA).batches())


def test_impossible_logs_are_refused() -> None:
    with pytest.raises(ConfigError, match="without duplicates"):
        RedisLog("redis://localhost", ("a", "a"))
    with pytest.raises(ConfigError, match="is not the URL of a Redis server"):
        next(read_stream(RedisLog("file:x", ("a",)), SCHEMA).batches())


def test_a_server_that_is_gone_is_said_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satrap.data.streams.redis.PATIENCE", 0.1)
    with pytest.raises(DataError, match="the Redis server cannot be read") as caught:
        list(read_stream(RedisLog("redis://me:secret@127.0.0.1:1/0", ("a",)), SCHEMA).batches())
    assert "secret" not in str(caught.value)
