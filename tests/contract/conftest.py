"""Every exchange the contract holds for; real processes are started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from satrap.exchange import Exchange
from satrap.store import Shard, StoreConfig
from tests.contract.embedded import embedded
from tests.contract.parties import (
    DEVICE_MEMORY,
    KINDS,
    SEED,
    TABLES,
    FromDevice,
    Process,
    connect,
    local,
    marks,
    threads,
)
from tests.exchange.collective.parties import MIXED, collective
from tests.exchange.joining import joined


@pytest.fixture(scope="session")
def processes() -> Iterator[list[Process]]:
    made = [Process() for _ in range(2)]
    yield made
    for process in made:
        process.end()


SIBLINGS = {
    "servers-1",
    "servers-3",
    "processes-2",
    "embedding-1",
    "collective-1",
    "collective-4",
    "joined-1",
}
"""Each the same exchange as one of the others, of another size or in a process: the basic test of rows and
state runs with them too, all others do in `make test-all`."""


@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.slow if k in SIBLINGS else marks(k)) for k in KINDS]
)
def exchange(request: pytest.FixtureRequest) -> Iterator[Exchange]:
    kind, _, shards = request.param.partition("-")
    if kind == "local":
        made: Exchange = local()
        yield made
        made.close()
    elif kind == "collective":
        with collective(int(shards), TABLES, StoreConfig(seed=SEED)) as made:
            yield made
    elif request.param == "device-1":
        made = FromDevice(Shard(TABLES, seed=SEED, device="cuda", memory=DEVICE_MEMORY))
        yield made
        made.close()
    elif kind == "device":
        store = StoreConfig(seed=SEED, device="cuda", memory=int(shards) * DEVICE_MEMORY)
        with collective(int(shards), TABLES, store) as made:
            yield made
    elif kind == "mixed":
        with collective(int(shards), TABLES, StoreConfig(seed=SEED), MIXED) as made:
            yield made
    elif kind == "joined":
        with joined(int(shards), TABLES, StoreConfig(seed=SEED), replicated=["c"], fresh=False) as made:
            yield made
    elif kind == "processes":
        made = connect([p.address for p in request.getfixturevalue("processes")])
        made.rows.clear()
        yield made
        made.close()
    elif kind == "embedding":
        with embedded(int(shards)) as exchange:
            yield exchange
    else:
        with threads(int(shards)) as servers:
            made = connect([s.address for s in servers])
            yield made
            made.close()
