"""Lookups end with the graph of their forward pass, and several become one update."""

from __future__ import annotations

import gc
import weakref

import torch

import satrap
from satrap.embedding import EmbeddingPlan, Embeddings, tables_of
from satrap.exchange import LocalExchange
from satrap.nn.lookups import OpenLookup, update
from satrap.optim import SGD
from satrap.store import StoreConfig, open_store
from tests.train.plain import make_batches, make_schema

SCHEMA = make_schema(item=satrap.Categorical(dim=4))


def test_a_lookup_ends_with_its_graph() -> None:
    exchange = LocalExchange(open_store(StoreConfig(), tables_of(SCHEMA, SGD(lr=1.0))))
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    embeddings, reached = Embeddings(plan, torch.device("cpu")), list[OpenLookup]()
    ticket = plan.ticket(make_batches(1)[0])
    lookup = exchange.lookup(ticket.requests, create=True)
    opened = OpenLookup(lookup, embeddings.rows(lookup.result()), reached)
    loss = sum(rows.sum() for rows in opened.seen())
    alive = weakref.ref(opened)
    del opened, lookup
    gc.disable()  # no cycle keeps it
    assert alive() is not None
    del loss
    assert alive() is None
    gc.enable()
    assert reached == []
    exchange.close()


def test_the_update_of_several_lookups_is_one_step_of_each_row() -> None:
    """Gradients are 1 for each unique id of a batch: rows fall by the number of batches that have them."""
    exchange = LocalExchange(open_store(StoreConfig(), tables_of(SCHEMA, SGD(lr=1.0))))
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    embeddings, reached = Embeddings(plan, torch.device("cpu")), list[OpenLookup]()
    tickets = [plan.ticket(batch) for batch in make_batches(3)]
    before = [exchange.lookup(ticket.requests, create=False).result() for ticket in tickets]
    for ticket in tickets:
        lookup = exchange.lookup(ticket.requests, create=True)
        opened = OpenLookup(lookup, embeddings.rows(lookup.result()), reached)
        for rows in opened.seen():
            rows.sum().backward()
    assert len(reached) == 3
    update(exchange, embeddings, reached, lr_scale=0.5)
    for ticket, first in zip(tickets, before, strict=True):
        after = exchange.lookup(ticket.requests, create=False).result()
        for request, old, new in zip(ticket.requests, first, after, strict=True):
            tables = len(request.splits) - 1
            for table in range(tables):
                part = slice(*request.splits[table : table + 2])
                others = [
                    set(
                        o.requests[request.group].ids[
                            slice(*o.requests[request.group].splits[table : table + 2])
                        ]
                    )
                    for o in tickets
                ]
                counts = torch.tensor([sum(i in other for other in others) for i in request.ids[part]])
                fallen = torch.from_numpy(old[part] - new[part])
                torch.testing.assert_close(fallen, 0.5 * counts[:, None].expand_as(fallen).float())
    exchange.close()
