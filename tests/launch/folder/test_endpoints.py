"""Each process of a run has an endpoint of its own: shards come first, then workers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import satrap
from satrap import models
from satrap.config import load
from satrap.config.keys.cluster import ClusterKeys
from satrap.dense import Workers
from satrap.errors import ConfigError
from satrap.launch.folder.endpoints import metrics_address, worker_endpoint
from satrap.openmetrics import Endpoint
from satrap.optim import SGD
from satrap.train import WorkerContext
from tests.launch.runs import make_recipe
from tests.support.scraping import scrape


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"metrics_port": 0}, "127.0.0.1:0"),
        ({"metrics_port": 9100}, "127.0.0.1:9103"),
        ({"metrics_port": 9100, "metrics_host": "::1"}, "[::1]:9103"),
    ],
)
def test_the_address_of_a_process(keys: dict[str, Any], expected: str | None) -> None:
    assert metrics_address(ClusterKeys(**keys), 3) == expected


def trainer(rank: int) -> satrap.Trainer:
    schema = satrap.Schema(labels=["y"], features={"user": satrap.Categorical(dim=4)})
    workers = Workers()
    workers.rank = rank
    made = satrap.Trainer(
        models.create("lr", schema),
        schema,
        embedding_optimizer=SGD(lr=0.1),
        place=WorkerContext(workers=workers),
    )
    made.run.progress.step = 12
    return made


def test_without_a_port_there_is_none(tmp_path: Path) -> None:
    said: list[str] = []
    endpoint = worker_endpoint(load(make_recipe(tmp_path)), trainer(0), said.append)
    assert isinstance(endpoint, nullcontext)
    assert said == []


def test_a_worker_tells_where_it_listens_and_what_it_counts(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = load(make_recipe(tmp_path), ["cluster.metrics_port=0"])
    with worker_endpoint(recipe, trainer(2), said.append) as endpoint:
        assert isinstance(endpoint, Endpoint)
        assert said == [f"worker 2: metrics on http://{endpoint.address}/metrics"]
        found = scrape(endpoint.address)
    assert found["satrap_worker_steps_total"] == 12
    assert found["satrap_role_info 2 worker"] == 1


@pytest.mark.parametrize(
    ("settings", "offset"), [([], 1), (["cluster.exchange=servers", "cluster.shards=3"], 4)]
)
def test_its_port_is_counted_from_that_of_the_first_process(
    tmp_path: Path, settings: list[str], offset: int
) -> None:
    with Endpoint("127.0.0.1", 0, dict) as taken:
        port = int(taken.address.split(":")[1])
        recipe = load(make_recipe(tmp_path), [f"cluster.metrics_port={port - offset}", *settings])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            worker_endpoint(recipe, trainer(1), print)
    assert "cluster.metrics_port" in caught.value.where
