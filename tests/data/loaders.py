"""A loader that serves a dataset, and a worker that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from satrap import data
from satrap.data.remote.client import RemoteData
from satrap.data.remote.server import LoaderService
from satrap.exchange.servers import ClientOptions
from satrap.rpc.server.server import Server
from satrap.schema import Categorical, Numeric, Schema

SCHEMA = Schema(
    labels=["clicked"],
    features={
        "user": Categorical(dim=4),
        "tags": Categorical(dim=4, multi=True, separator="|"),
        "price": Numeric(transform="log1p"),
    },
)
ROWS = 997


def columns(rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "user": rng.integers(0, 50, rows),
        "tags": ["|".join(map(str, rng.integers(0, 9, rng.integers(0, 4)))) for _ in range(rows)],
        "price": rng.exponential(3, rows),
        "clicked": rng.integers(0, 2, rows),
    }


@contextmanager
def loader(
    parts: Mapping[str, data.Dataset], listen: str = "127.0.0.1:0"
) -> Iterator[tuple[Server, LoaderService]]:
    service = LoaderService(
        lambda part, schema: parts[part].with_options(schema=schema) if part in parts else None
    )
    with Server(listen, service) as server:
        yield server, service


def remote(server: Server, part: str = "train", *, deadline: float = 20.0, **share: int) -> RemoteData:
    options = ClientOptions(deadline=deadline)
    return RemoteData("loader 3", server.address, part, SCHEMA, **share, options=options)
