"""A shard finds each row once per step: the update uses what its lookup has found."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.lookup import LookupRequest
from satrap.exchange.servers.shard import slot_cache
from satrap.exchange.servers.shard.slot_cache import SlotCache
from satrap.exchange.wire.sections import pack
from satrap.rpc.wire.frames import Header, MessageKind
from satrap.store import Slots
from tests.exchange.servers.journaled import bench, gradients, hello

Entry = tuple[LookupRequest, Slots]


def entry(*ids: int, group: int = 0) -> Entry:
    return asked(*ids, group=group), Slots(group, np.arange(len(ids), dtype=np.int32), 0, 0)


def asked(*ids: int, group: int = 0, table: int = 0) -> LookupRequest:
    return LookupRequest(group, np.array(ids, np.uint64), np.array([0, 0 if table else len(ids), len(ids)]))


def test_an_update_gets_the_slots_of_the_lookup_with_its_ids() -> None:
    rows = SlotCache()
    first, second, third = [entry(1, 2), entry(3, group=1)], [entry(4, 5), entry(3, group=1)], [entry(6)]
    for lookup in (first, second, third):
        rows.keep(7, lookup)
    assert rows.take(7, [asked(4, 5), asked(3, group=1)]) == [slots for _, slots in second]
    assert rows.take(7, [asked(1, 2), asked(3, group=1)]) == [None, None]  # it was passed over
    assert rows.take(7, [asked(6)]) == [third[0][1]]
    assert rows.take(7, [asked(6)]) == [None]  # a lookup has one update


@pytest.mark.parametrize(
    "wanted",
    [
        [asked(2, 1)],
        [asked(1)],
        [asked(1, 2, 3)],
        [asked(1, 2, group=1)],
        [asked(1, 2, table=1)],
        [asked(1, 2), asked(3)],
        [],
    ],
)
def test_other_ids_find_nothing_and_lose_nothing(wanted: list[LookupRequest]) -> None:
    rows, lookup = SlotCache(), [entry(1, 2)]
    rows.keep(7, lookup)
    assert rows.take(7, wanted) == [None] * len(wanted)
    assert rows.take(7, [asked(1, 2)]) == [lookup[0][1]]


def test_clients_have_lookups_of_their_own_until_they_are_gone() -> None:
    rows, mine, theirs = SlotCache(), [entry(1)], [entry(1)]
    rows.keep(7, mine)
    rows.keep(8, theirs)
    assert rows.take(9, [asked(1)]) == [None]
    rows.forget(lambda client: client == 7)
    assert rows.take(7, [asked(1)]) == [None]
    assert rows.take(8, [asked(1)]) == [theirs[0][1]]


def test_the_oldest_lookups_are_forgotten_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 48 bytes: two ids and three splits of eight, two slots of four."""
    monkeypatch.setattr(slot_cache, "LIMIT", 144)
    rows = SlotCache()
    for client in range(4):
        rows.keep(client, [entry(client, 9)])
    kept = [rows.take(client, [asked(client, 9)]) != [None] for client in range(4)]
    assert kept == [False, True, True, True]
    for client in range(3):  # what was taken leaves its room
        rows.keep(client, [entry(client, 9)])
    assert all(rows.take(client, [asked(client, 9)]) != [None] for client in range(3))


def test_a_shard_finds_rows_once_for_a_lookup_and_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = pack([gradients([1.0] * 4), gradients([1.0] * 8, 1)])
    with bench() as shard:
        shard.send(*hello(1))
        shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), parts)
        before = shard.rows()
        for group in shard.service.store.groups:
            monkeypatch.setattr(group.directory, "find", None)
        answer = shard.send(Header(MessageKind.UPDATE, 1, 1, 2, 2), parts)
        assert answer is not None
        assert answer.header.kind == MessageKind.UPDATE | 0x80
        monkeypatch.undo()
        assert shard.rows() != before
