"""A loader answers whatever it is asked; absurd requests disturb nobody, not even their sender's pass."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap import data
from satrap.data.remote.server import LoaderService
from satrap.errors import SatrapError
from satrap.rpc.client.client import Client
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import Session
from satrap.rpc.server.turns import execute
from satrap.rpc.wire.frames import FAILURE, Header, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests.data.loaders import SCHEMA, columns, loader, remote
from tests.exchange.servers.requests import misplace, opening
from tests.support.examples import examples

HUGE = 10**400
ASKED = opening(SCHEMA)
OPENS: dict[str, dict[str, Any]] = {
    "epoch endless": {"epoch": float("inf")},
    "epoch huge": {"epoch": HUGE},
    "epoch true": {"epoch": True},
    "epoch of text": {"epoch": "0"},
    "part of a list": {"part": ["train"]},
    "schema nothing": {"schema": None},
    "features of a list": {"schema": SCHEMA.to_dict() | {"features": []}},
    "features of numbers": {"schema": SCHEMA.to_dict() | {"features": {"user": 1}}},
    "labels nothing": {"schema": SCHEMA.to_dict() | {"labels": None}},
    "no schema": {"schema": {}},
    "worker 1 of 1": {"worker": 1},
    "worker of text": {"worker": "0"},
    "workers huge": {"workers": HUGE},
    "position of a list": {"position": [1]},
    "position of a number": {"position": 7},
}


@pytest.fixture(scope="module")
def rows() -> data.Dataset:
    return data.read(columns(), SCHEMA, batch_size=50)


def requests() -> list[tuple[MessageKind, list[Any]]]:
    texts = [pack_text(ASKED | changes) for changes in OPENS.values()]
    return [
        *((MessageKind.OPEN, [text]) for text in texts),
        (MessageKind.OPEN, []),
        (MessageKind.OPEN, [b"", b""]),
        (MessageKind.OPEN, [b"[]"]),
        (MessageKind.HELLO, []),
        (MessageKind.HELLO, [b"\xff"]),
        (MessageKind.LOOKUP, []),
        (MessageKind.CUT, [pack_text({"number": 1})]),
        (MessageKind.STATISTICS, []),
    ]


def test_absurd_requests_are_refused_and_disturb_nobody(rows: data.Dataset) -> None:
    with loader({"train": rows}) as (server, _), closing(Client("loader", {0: server.address})) as client:
        client.ask(0, MessageKind.OPEN, [pack_text(ASKED)]).result(20)
        for kind, parts in requests():
            with pytest.raises(SatrapError):
                client.ask(0, kind, parts).result(20)
        assert "size" in unpack_text(taken(client))  # its own pass goes on
        assert len(list(remote(server).batches())) == len(list(rows.batches()))


def taken(client: Client) -> Any:
    """Return the text of the next batch."""
    while "wait" in unpack_text(first := client.ask(0, MessageKind.NEXT).result(20)[0]):
        pass
    return first


def test_a_position_that_makes_no_sense_ends_the_pass_with_an_error(rows: data.Dataset) -> None:
    batch = next(iter(rows.batches()))
    position = dict(batch.position) | {"skip": "x", "cursor": [HUGE]}
    with loader({"train": rows}) as (server, _):
        with pytest.raises(SatrapError):
            list(remote(server).batches(0, position))
        assert len(list(remote(server).batches())) == len(list(rows.batches()))


def test_an_error_that_nobody_foresaw_is_an_answer(rows: data.Dataset) -> None:
    def open(part: str, schema: Any) -> data.Dataset:
        if part == "train":
            return rows
        raise ZeroDivisionError(part)

    service = LoaderService(open)
    job = Job(Session(1, b""), Header(MessageKind.OPEN), [pack_text(ASKED | {"part": "test"})], 0, 0.0)
    answer = execute(service, job)
    text = unpack_text(answer.parts[0])
    assert answer.header.kind == FAILURE
    assert "ZeroDivisionError: test" in text["what"]
    assert text["where"] == "loader: open"


def test_a_client_has_one_pass_at_a_time(rows: data.Dataset) -> None:
    service, session = LoaderService(lambda part, _: rows if part == "train" else None), Session(1, b"")

    def asked(kind: MessageKind, *parts: Any) -> Any:
        [text, *_] = execute(service, Job(session, Header(kind), list(parts), 0, 0.0)).parts
        return unpack_text(text)

    def next_one() -> Any:
        while "wait" in (text := asked(MessageKind.NEXT)):
            pass
        return text

    assert next_one() == {"end": True}
    assert asked(MessageKind.OPEN, pack_text(ASKED)) == {"rows": rows.num_rows()}
    assert next_one()["size"] == 50
    assert (service.batches, service.samples, service.statistics().streams) == (1, 50, 1)
    assert asked(MessageKind.OPEN, pack_text(ASKED | {"part": "test"})) == {"missing": True}
    assert next_one() == {"end": True}
    assert asked(MessageKind.OPEN, pack_text(ASKED | {"read": False})) == {"rows": rows.num_rows()}
    assert (next_one(), service.statistics().streams) == ({"end": True}, 0)
    asked(MessageKind.OPEN, pack_text(ASKED))
    while "size" in next_one():
        assert service.statistics().streams == 1
    assert (service.statistics().streams, service.samples) == (0, 50 + rows.num_rows())
    asked(MessageKind.OPEN, pack_text(ASKED))
    session_of_another = 2
    service.forget(lambda client: client == session_of_another)
    assert service.statistics().streams == 1
    service.forget(lambda client: client == session.client)
    assert service.statistics().streams == 0
    asked(MessageKind.OPEN, pack_text(ASKED))
    service.close()
    assert service.statistics().streams == 0


def test_a_pass_with_an_error_is_over() -> None:
    class Broken(data.Dataset):
        def batches(self, epoch: int = 0, position: Any = None) -> Any:
            yield 1 // 0

    bad = data.read({**columns(10), "clicked": ["no"] * 10}, SCHEMA, batch_size=5)
    for rows, kinds in (
        (bad, (MessageKind.NEXT | 0x80,)),
        (Broken(bad._source, SCHEMA, bad.settings), (FAILURE,)),
    ):
        service, session = LoaderService(lambda *_, rows=rows: rows), Session(1, b"")
        rows.with_options = lambda rows=rows, **_: rows  # type: ignore[method-assign]
        execute(service, Job(session, Header(MessageKind.OPEN), [pack_text(ASKED)], 0, 0.0))
        assert service.statistics().streams == 1
        while "wait" in unpack_text(
            (answer := execute(service, Job(session, Header(MessageKind.NEXT), [], 0, 0.0))).parts[0]
        ):
            pass
        assert answer.header.kind in kinds
        assert service.statistics().streams == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 1, HUGE, 0.5, float("nan"), "", "train", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["user", "kind"]), inner),
    max_leaves=3,
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_in_any_place_of_an_open(rows: data.Dataset, data: st.DataObject) -> None:
    asked = opening(SCHEMA)
    misplace(data, VALUES, asked)
    service = LoaderService(lambda _, schema: rows.with_options(schema=schema))
    session = Session(1, b"")
    sent: list[tuple[MessageKind, list[Any]]] = [
        (MessageKind.OPEN, [pack_text(asked)]),
        (MessageKind.NEXT, []),
        (MessageKind.BYE, []),
    ]
    for sequence, (kind, parts) in enumerate(sent):
        job = Job(session, Header(kind, sequence=sequence), parts, 0, 0.0)
        assert execute(service, job).header.kind in (FAILURE, kind | 0x80)
