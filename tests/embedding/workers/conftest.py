"""Kernels are compiled before deadlines count."""

from __future__ import annotations

import pytest

from tests.embedding.workers import tier


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    data = tier.Listed(tier.batches(2))
    for wire in (tier.EXACT, tier.Wire("float16", "bfloat16")):
        with tier.servers(2, 1) as (shards, middle):
            for between in ([], middle):
                one = tier.trainer(shards, between, wire=wire, deadline=600.0)
                one.fit(data, validation=data)
                tier.tables(one)
                one.close()
