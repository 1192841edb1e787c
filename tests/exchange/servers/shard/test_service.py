"""Any request, however absurd, is answered; a refused one changes nothing and is in no journal."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.wire.frames import FAILURE, Code, Header, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests.exchange.servers.journaled import (
    ONE,
    ONE_ID,
    Bench,
    bench,
    gradients,
    hello,
    refused,
    sections,
)
from tests.exchange.servers.requests import misplace
from tests.support.examples import examples

HUGE = 10**400
COLUMNS = {"ids": ["<u8", -1], "weights": ["<f4", 4], "state": ["<f4", 4]}


def chunk(**changes: Any) -> list[Any]:
    ids, row = ONE_ID.view(np.uint8), np.zeros(4, np.float32).view(np.uint8)
    return [pack_text({"table": "a", "rows": 1, "columns": COLUMNS} | changes), ids, row, row]


def no_rows(rows: object, width: object = 0) -> list[Any]:
    columns = {"ids": ["<u8", width], "weights": ["<f4", width], "state": ["<f4", width]}
    return [pack_text({"table": "a", "rows": rows, "columns": columns}), b"", b"", b""]


REQUESTS: dict[str, tuple[MessageKind, list[Any]]] = {
    "rows -1": (MessageKind.LOAD, chunk(rows=-1)),
    "rows huge": (MessageKind.LOAD, no_rows(10**30)),
    "rows true": (MessageKind.LOAD, chunk(rows=True)),
    "rows true, width 0": (MessageKind.LOAD, no_rows(True)),
    "rows -1, width 0": (MessageKind.LOAD, no_rows(-1)),
    "width true": (MessageKind.LOAD, no_rows(0, True)),
    "ids of width 1": (MessageKind.LOAD, chunk(columns=COLUMNS | {"ids": ["<u8", 1]})),
    "layout without width": (MessageKind.LOAD, chunk(columns={"ids": ["<u8"]})),
    "table unknown": (MessageKind.LOAD, chunk(table="nobody")),
    "weights of whole numbers": (MessageKind.LOAD, chunk(columns=COLUMNS | {"weights": ["<i4", 4]})),
    "state of another width": (MessageKind.LOAD, chunk(columns=COLUMNS | {"state": ["<f2", 8]})),
    "chunk without parts": (MessageKind.LOAD, []),
    "surrogate": (MessageKind.EXPORT, [b'{"table": "\\ud800"}']),
    "export of a list": (MessageKind.EXPORT, [pack_text({"table": ["a"]})]),
    "export without parts": (MessageKind.EXPORT, []),
    "cut without number": (MessageKind.CUT, [pack_text({})]),
    "cut of true": (MessageKind.CUT, [pack_text({"number": True})]),
    "cut of a huge number": (MessageKind.CUT, [pack_text({"number": HUGE})]),
    "put back a list": (MessageKind.PUT_BACK, [pack_text({"number": []})]),
    "write elsewhere": (MessageKind.WRITE, [pack_text({"url": "/x", "folder": "../x", "number": 1})]),
    "write what is not cut": (
        MessageKind.WRITE,
        [pack_text({"url": "/x", "folder": "data-00000000", "number": 1})],
    ),
    "read a number": (MessageKind.READ, [pack_text({"url": 5})]),
    "save without folder": (MessageKind.SAVE, [pack_text({"url": "/x"})]),
    "of a loader": (MessageKind.OPEN, [pack_text({"part": "train"})]),
    "of an embedding worker": (MessageKind.RECALL, [pack_text({"number": 1})]),
    "text of a million brackets": (MessageKind.EXPORT, [b"[" * 1_000_000]),
    "lookup without parts": (MessageKind.LOOKUP, []),
    "lookup of group 9": (MessageKind.LOOKUP, pack([Section(9, ONE, ONE_ID)])),
    "update without gradients": (MessageKind.UPDATE, pack([Section(0, ONE, ONE_ID)])),
    "update of another width": (MessageKind.UPDATE, pack([gradients([1.0])])),
    "update of NaN": (MessageKind.UPDATE, pack([gradients([1, 1, 1, np.nan])])),
    "second update of NaN": (MessageKind.UPDATE, pack([gradients([1.0] * 4), gradients([np.nan] * 8, 1)])),
    "update beyond float32": (MessageKind.UPDATE, pack([gradients([1.0] * 4, scale=1e-40)])),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_an_absurd_request_is_refused_and_in_no_journal(name: str) -> None:
    kind, parts = REQUESTS[name]
    with bench() as shard:
        shard.send(*hello(1))
        shard.send(
            Header(MessageKind.LOOKUP, 1, 1, 1, 1), pack([gradients([0.0] * 4), gradients([0.0] * 8, 1)])
        )
        refused(shard, kind, parts)
        answer = shard.send(Header(MessageKind.FLUSH, 1, 1, 3, 3))
        assert answer is not None
        assert answer.header.kind != FAILURE


def table(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = unpack_text(hello(1)[1][0])["tables"][0]
    return {"tables": [plain | changes]}


def optimizer(**changes: Any) -> dict[str, Any]:
    return table(optimizer={"name": "adam", "lr": 0.1} | changes)


BOUND: dict[str, Any] = {"memory": 1 << 20, "eviction": {"policy": "lru", "ttl": None}}
HELLOS: dict[str, dict[str, Any]] = {
    "memory huge": {"memory": 10**30},
    "memory true": {"memory": True},
    "memory of text": {"memory": "12"},
    "memory of a fraction": {"memory": 1e6},
    "memory endless": {"memory": float("inf")},
    "memory -1": {"memory": -1},
    "seed of a fraction": {"seed": 0.5},
    "seed nothing": {"seed": None},
    "shard true": {"shard": True, "shards": 2},
    "shards huge": {"shards": HUGE},
    "epoch huge": {"epoch": HUGE},
    "generation huge": {"generation": HUGE},
    "generation true": {"generation": True},
    "generation -1": {"generation": -1},
    "run of a number": {"run": 5},
    "run endless": {"run": "x" * 100},
    "rank true": {"rank": True, "world": 2},
    "world huge": {"world": HUGE},
    "mode of a list": {"mode": []},
    "forward of a list": {"forward": ["float32"]},
    "tables nothing": {"tables": None},
    "tables empty": {"tables": []},
    "tables of numbers": {"tables": [1, 2]},
    "table of a list": table(name=["a"]),
    "table surrogate": table(name="\ud800"),
    "dim true": table(dim=True),
    "scale huge": table(initial_scale=HUGE),
    "scale endless": table(initial_scale=float("inf")),
    "scale of text": table(initial_scale="1"),
    "dtype of a list": table(dtype=["float32"]),
    "lr huge": optimizer(lr=HUGE),
    "lr beyond float32": optimizer(lr=1e39),
    "lr of text": optimizer(lr="1"),
    "lr nothing": optimizer(lr=None),
    "eps huge": optimizer(eps=HUGE),
    "one beta": optimizer(betas=[0.9]),
    "betas of text": optimizer(betas="ab"),
    "clip of a list": optimizer(clip=[1]),
    "decay huge": optimizer(weight_decay=HUGE),
    "optimizer of a list": table(optimizer=["adam"]),
    "admission of a list": {"admission": [1]},
    "admission of half a use": {"admission": {"min_count": 1.5, "probability": 1.0, "memory": 64}},
    "admission of all memory": {"admission": {"min_count": 2, "probability": 1.0, "memory": 2**200}},
    "admission by text": {"admission": {"min_count": 2, "probability": "1", "memory": 64}},
    "ttl of a fraction": {"eviction": {"policy": "ttl", "ttl": 1.5}},
    "policy of a list": {"memory": 1 << 20, "eviction": {"policy": ["lru"], "ttl": None}},
    "tier of huge size": BOUND | {"tier": {"path": "/tmp", "size": 10**40}},
    "tier with NUL": BOUND | {"tier": {"path": "/tmp/\0", "size": 1 << 20}},
    "tier nowhere": BOUND | {"tier": {"path": "/nowhere/at/all", "size": 1 << 20}},
}  # fmt: skip


@pytest.mark.parametrize("name", HELLOS)
def test_an_absurd_hello_is_refused_and_the_next_one_taken(name: str) -> None:
    _, [text] = hello(1)
    with bench() as shard:
        told = refused(shard, MessageKind.HELLO, [json.dumps(unpack_text(text) | HELLOS[name]).encode()])
        assert told["code"] in (Code.CONFIG, Code.STORE)
        assert shard.service.config is None
        answer = shard.send(*hello(2))
        assert answer is not None
        assert answer.header.kind != FAILURE


NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 255, 2**31, 2**63, 2**64, 10**30, HUGE, 0.5, float("inf"), float("nan")]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "\0", "\ud800", "data-00000000", "lru"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "size"]), inner)
    ),
    max_leaves=4,
)  # fmt: skip
KEYS = ["table", "rows", "columns", "number", "delta", "since", "url", "folder", "shown", "save", "exact"]
TEXTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5)
KINDS = st.sampled_from(
    [k for k in MessageKind if k < MessageKind.PING and k not in (MessageKind.HELLO, MessageKind.READ)]
)
"""A READ fails in the background, and then again when it is repeated: see `test_recovery`."""


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(KINDS, TEXTS, st.lists(st.binary(max_size=40), max_size=4)), max_size=8))
def test_whatever_comes_is_answered_and_the_shard_comes_back(requests: list[Any]) -> None:
    """It is then what it was, and an honest request gets what it would have got."""
    with TemporaryDirectory() as folder:
        shard = Bench(Path(folder))
        shard.send(*hello(1))
        sequence = 1
        for kind, text, raw in requests:
            answer = shard.send(Header(kind, 1, 1, sequence, sequence), [pack_text(text), *raw])
            assert answer is not None
            sequence += 1
            if kind == MessageKind.BYE:
                break
        rng = np.random.default_rng(0)
        shard.send(*hello(2))
        shard.send(Header(MessageKind.LOOKUP, 1, 2, 1, 1), sections(rng, gradients=False))
        shard.send(Header(MessageKind.UPDATE, 1, 2, 2, 2), sections(rng, gradients=True))
        before = shard.everything()["rows"]
        shard.die()
        shard = Bench(Path(folder))
        assert shard.everything()["rows"] == before
        shard.die()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_hellos_with_any_value_in_any_place(data: st.DataObject) -> None:
    _, [text] = hello(1, memory=1 << 20)
    plain = unpack_text(text)
    misplace(data, VALUES, plain)
    with bench() as shard:
        answer = shard.send(Header(MessageKind.HELLO, 1, 1), [json.dumps(plain).encode()])
        assert answer is not None
        if answer.header.kind != FAILURE:
            for at, kind in enumerate((MessageKind.LOOKUP, MessageKind.UPDATE), 1):
                parts = pack([gradients([1.0] * 4), gradients([1.0] * 8, 1)])
                assert shard.send(Header(kind, 1, 1, at, at), parts) is not None
