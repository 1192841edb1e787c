"""Real roles: what they count is what their endpoints say."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from satrap.data.remote.server import LoaderService
from satrap.embedding.workers import ClientThreads, EmbeddingService
from satrap.errors import ConfigError
from satrap.exchange.servers import ServersExchange, ShardServer, Wire
from satrap.openmetrics import (
    METRICS,
    Endpoint,
    embedding_worker_values,
    loader_values,
    metrics_of,
    shard_values,
    worker_values,
)
from satrap.rpc.server.server import Server
from satrap.runtime.events import Event, MetricsServed
from satrap.store import Eviction, Tier
from satrap.train import Progress
from tests.contract.parties import connect, request, threads, train
from tests.support.scraping import answer, scrape


def served(shard: ShardServer) -> Endpoint:
    return Endpoint("127.0.0.1", 0, lambda: shard_values(shard.service.statistics()))


def test_a_shard_is_ready_once_it_has_recovered(tmp_path: Path) -> None:
    def ready(shard: ShardServer) -> bytes:
        with metrics_of(shard, dict, "127.0.0.1:0") or nullcontext() as endpoint:
            assert isinstance(endpoint, Endpoint)
            return answer(endpoint.address, b"GET /ready HTTP/1.1\r\n\r\n")

    with ShardServer("127.0.0.1:0", journal=tmp_path / "journal") as shard:
        assert ready(shard).startswith(b"HTTP/1.1 200 OK")
        client = connect([shard.address], wire=Wire())
        train(client, steps=3, seed=1, ahead=0)
        client.close()
    again = ShardServer("127.0.0.1:0", journal=tmp_path / "journal")  # repeats its journal once it runs
    found = ready(again)
    assert found.startswith(b"HTTP/1.1 503 ")
    assert found.endswith(b"recovering from the start of the run + journal (3 updates)")
    with again:
        for _ in range(1000):
            if (found := ready(again)).startswith(b"HTTP/1.1 200 OK"):
                return
    raise AssertionError(found)


def test_an_endpoint_is_told_and_one_that_cannot_be_ends_its_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: list[Event] = []
    with ShardServer("127.0.0.1:0") as shard:
        assert metrics_of(shard, dict, None) is None
        made = metrics_of(shard, dict, "127.0.0.1:0", said.append)
        assert made is not None
        made.close()
        assert said == [MetricsServed(made.reached)]
        assert capsys.readouterr().out == f"satrap shard metrics on http://{made.address}/metrics\n"
        assert not shard._stopping.is_set()
        with pytest.raises(ConfigError, match="65536"):
            metrics_of(shard, dict, "127.0.0.1:65536")
        assert shard._stopping.is_set()


def test_a_shard_and_a_worker_that_trained() -> None:
    with (
        threads(1) as (server,),
        Endpoint("127.0.0.1", 0, lambda: shard_values(server.service.statistics())) as end,
    ):
        before = scrape(end.address)
        assert before["satrap_role_info  shard"] == 1
        assert before["satrap_shard_rows"] == before["satrap_shard_requests_total lookup"] == 0
        client = connect([server.address], wire=Wire())
        train(client, steps=9, seed=1, ahead=2)
        after = scrape(end.address)
        assert after["satrap_role_info 0 shard"] == 1
        assert after["satrap_shard_rows"] == after["satrap_shard_created_rows_total"] > 0
        for kind in ("lookup", "update"):
            assert after[f"satrap_shard_requests_total {kind}"] == 9
        assert after["satrap_shard_busy_seconds_total"] > 0
        assert after["satrap_shard_clients"] == 1
        check_worker(client, after)
        client.close()


def test_a_shard_with_a_tier(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"memory": 4 << 20, "eviction": Eviction(), "tier": Tier(str(tmp_path), 3 << 20)}
    with (
        threads(1) as (server,),
        Endpoint("127.0.0.1", 0, lambda: shard_values(server.service.statistics())) as end,
    ):
        client = connect([server.address], **bounds)
        for first in (0, 30_000, 0):
            wanted = [request(0, list(range(first, first + 20_000)), []), request(1, [])]
            client.lookup(wanted, create=True).result()
        inside = client.telemetry.statistics().tables["a"].rows
        found = scrape(end.address)
        client.close()
    rows = found["satrap_shard_tier_rows"]
    read, written = found["satrap_shard_tier_read_rows_total"], found["satrap_shard_tier_written_rows_total"]
    assert 0 < rows < inside == 40_000
    assert rows * 32 <= found["satrap_shard_tier_bytes"] <= 3 << 20
    assert 0 < read <= 20_000
    assert rows <= written <= rows + read
    assert found["satrap_shard_tier_prefetched_rows_total"] == 0
    assert found["satrap_shard_tier_prefetch_hits_total"] == 0


def check_worker(client: ServersExchange, shard: dict[str, float]) -> None:
    progress = Progress(step=9, samples=90, distinct_ratio=0.5, stage_seconds={"read": 1.5, "lookup": 0.5})
    with Endpoint("127.0.0.1", 0, lambda: worker_values(1, progress, client.telemetry.traffic())) as endpoint:
        worker = scrape(endpoint.address)
    assert worker["satrap_role_info 1 worker"] == 1
    assert worker["satrap_worker_sent_bytes_total"] == shard["satrap_shard_received_bytes_total"]
    assert worker["satrap_worker_received_bytes_total"] == shard["satrap_shard_sent_bytes_total"]
    assert worker["satrap_worker_staleness_updates_count own"] == 9
    assert worker["satrap_worker_staleness_updates_sum own"] == 0 + 1 + 7 * 2
    assert worker["satrap_worker_staleness_updates_bucket 1.0 own"] == 2
    assert worker["satrap_worker_stage_seconds_total read"] == 1.5
    assert worker["satrap_worker_push_seconds_count"] == 9
    assert worker["satrap_worker_pushes_in_flight"] == 0
    assert worker["satrap_worker_distinct_ids_ratio"] == 0.5
    assert "satrap_worker_loss" not in worker  # not known before the first step


def test_every_metric_has_a_source() -> None:
    with threads(1) as (server,):
        shard = shard_values(server.service.statistics())
        client = connect([server.address])
        progress = Progress(loss=0.5, distinct_ratio=0.5, event_time=1.7e9)
        worker = worker_values(0, progress, client.telemetry.traffic())
        client.close()
    with Server("127.0.0.1:0", reader := LoaderService(lambda *_: None)):
        loader = loader_values(reader.statistics())
    with Server("127.0.0.1:0", pooler := EmbeddingService([]), dispatcher=ClientThreads):
        middle = embedding_worker_values(pooler.statistics())
    others = {metric.name for metric in METRICS if not metric.name.startswith("satrap_serve_")}
    assert {*shard, *worker, *middle, *loader} == others  # `tests/serve/test_metrics.py` has the server's
