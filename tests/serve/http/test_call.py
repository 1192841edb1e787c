"""A request and its answer as ASGI has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from satrap.serve.http.call import AsgiCall, ClientGoneError, Reply, header
from satrap.serve.http.errors import RequestError
from satrap.serve.scoring.scorer import ScoredRequest


def call(messages: Sequence[Any] = (), headers: Sequence[tuple[bytes, bytes]] = ()) -> AsgiCall:
    """Return a request whose messages come one after another; after them, none comes."""
    left = list(messages)

    async def receive() -> Any:
        return left.pop(0) if left else await asyncio.Event().wait()

    return AsgiCall({"type": "http", "headers": list(headers)}, receive)


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_the_first_header_of_a_name_counts() -> None:
    """So no proxy and server take another one for the key."""
    asked = call(headers=[(b"authorization", b"Bearer a"), (b"x", b"\xe9"), (b"authorization", b"Bearer b")])
    assert asked.header(b"authorization") == "Bearer a"
    assert asked.header(b"x") == "é"
    assert asked.header(b"y") is None


def test_a_body_comes_in_parts() -> None:
    asked = call([part(b"ab", True), part(b"", True), part(b"c")])
    assert asyncio.run(asked.body(3)) == b"abc"


@pytest.mark.parametrize("length", [[], [(b"content-length", b"4")], [(b"content-length", b"x")]])
def test_too_large_a_body_is_not_read_to_its_end(length: list[tuple[bytes, bytes]]) -> None:
    asked = call([part(b"abcd", True), part(b"e", True)], length)
    with pytest.raises(RequestError) as error:
        asyncio.run(asked.body(3))
    assert (error.value.status, error.value.headers) == (413, {"Connection": "close"})
    assert asyncio.run(asked.receive())["body"] == (b"abcd" if length and length[0][1] == b"4" else b"e")


def test_a_client_may_leave_before_its_body_is_complete_and_before_its_answer() -> None:
    with pytest.raises(ClientGoneError):
        asyncio.run(call([part(b"a", True), {"type": "http.disconnect"}]).body(9))

    async def leave() -> asyncio.Future[ScoredRequest]:
        answer: asyncio.Future[ScoredRequest] = asyncio.get_running_loop().create_future()
        with pytest.raises(ClientGoneError):
            await call([{"type": "http.disconnect"}]).unless_gone(answer)
        return answer

    assert asyncio.run(leave()).cancelled()


def test_an_answer_is_sent_before_what_comes_after_it() -> None:
    found: list[Any] = []

    async def send(message: Any) -> None:
        found.append(message)

    async def after() -> None:
        found.append("after")

    reply = Reply(b"body", "text/plain", 201, [header("Satrap-Step", "7")], after)
    asyncio.run(reply.send(send))
    names = [(b"content-length", b"4"), (b"content-type", b"text/plain"), (b"satrap-step", b"7")]
    assert found == [
        {"type": "http.response.start", "status": 201, "headers": names},
        {"type": "http.response.body", "body": b"body"},
        "after",
    ]
