"""What attackers do: each function is one round of one attack, and sends what it likes.

Attackers that hold the key, or need none, know the protocol and the honest client's hello. They may do what a
client may, except to rows of the honest client's table: they update, load and clear only what is theirs.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np
from tests.exchange.servers.requests import opening

from satrap.exchange.kernels import FLOAT32
from satrap.exchange.servers.config import ShardConfig, store_to_dict, tables_to_dicts
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc import Key, read_key
from satrap.rpc.wire.frames import Header, MessageKind, digest, encode
from satrap.rpc.wire.text import pack_text
from satrap.store import StoreConfig
from tools_dev.hostile.link import SECONDS, Link, frame, message
from tools_dev.hostile.targets import RUN, SCHEMA, SEED, TABLES, WORLD

MANY = 1000
"""Messages of one send."""

POLITE = 19
"""Niceness of attackers: on a machine of their own they would take no processor time of those they attack."""

NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 10**300, 1e308, float("nan"), float("inf"),
    float("-inf"), "", "x", "\ud800", "mine", "theirs", "../../etc/passwd", "a" * 10_000, [], [[]],
    [None] * 1000, {}, {"a": 1}, [[[[[[[[[[]]]]]]]]]],
]  # fmt: skip
"""Values that no field expects, or not all do."""


@dataclass
class Attacker:
    """One attacking process.

    Args:
        role: of what it attacks.
        address: HOST:PORT of that.
        key: with which it connects; None: in the open.
        random: of all it does.
        delivered: messages that the system took, of all attackers.
        pool: messages made before, to be sent again.
    """

    role: str
    address: str
    key: Key | None
    random: random.Random
    delivered: Synchronized[int]
    pool: dict[str, list[bytes]] = field(default_factory=dict)

    def link(self, **arguments: Any) -> Link:
        return Link(self.address, self.key, **arguments)

    def send(self, link: Link, data: bytes, count: int = 1) -> None:
        link.send(data)
        with self.delivered.get_lock():
            self.delivered.value += count

    def client(self) -> int:
        return self.random.getrandbits(63) + 1

    def session(self, link: Link, **changes: Any) -> tuple[int, bool]:
        """Say hello; return the number of the client, and whether it is served."""
        client = self.client()
        self.send(link, message(Header(MessageKind.HELLO, 1, client), [text(self.hello() | changes)]))
        kind = link.receive()[0][6]
        return client, kind == MessageKind.HELLO | 0x80

    def hello(self) -> dict[str, Any]:
        """Return what an honest client of this role would say, of another rank."""
        about = {"rank": self.random.randrange(1, WORLD), "world": WORLD, "generation": 1, "run": RUN}
        if self.role == "loader":
            return {}
        tables = tables_to_dicts(TABLES)
        if self.role == "embedding-worker":
            plain = {"schema": SCHEMA.to_dict(), "tables": tables, "shards": 1, "deadline": 60.0}
            about |= {"mode": "hybrid", "wire": ["float32", "float32"]}
            return plain | store_to_dict(StoreConfig(SEED)) | about
        config = ShardConfig(TABLES, StoreConfig(SEED), 0, ShardMap(1)).to_dict()
        return config | about | {"forward": "float32", "mode": "hybrid"}


def text(content: Any) -> bytes:
    return pack_text(content)


def _raw(parts: Sequence[Any]) -> list[bytes]:
    return [bytes(memoryview(part)) for part in parts]


def requests(a: Attacker) -> list[tuple[MessageKind, list[bytes]]]:
    """Return right requests of a role, of small size, that harm nobody."""
    ids = np.arange(a.random.randrange(1, 9), dtype=np.uint64)
    splits = np.array([0, len(ids)], np.int64)
    rows = np.ones(len(ids) * 8, np.float32).tobytes()
    lookup = _raw(pack([Section(1, splits, ids)]))
    update = _raw(pack([Section(1, splits, ids, FLOAT32, 8, 1.0, rows)]))
    load = {"table": "theirs", "rows": 1, "columns": {}}
    batch = {"size": 1, "number": a.random.randrange(9), "replay": False}
    return [
        (MessageKind.LOOKUP, lookup),
        (MessageKind.PEEK, lookup),
        (MessageKind.UPDATE, update),
        (MessageKind.PREFETCH, lookup),
        (MessageKind.LOAD, [text(load), ids[:1].tobytes(), rows[:32], rows[:32]]),
        (MessageKind.EXPORT, [text({"table": "theirs"})]),
        (MessageKind.STATISTICS, []),
        (MessageKind.FLUSH, []),
        (MessageKind.CUT, [text({"number": 5})]),
        (MessageKind.JOB, [text({"number": 5})]),
        (MessageKind.PUT_BACK, [text({"number": 5})]),
        (MessageKind.WRITE, [text({"url": "/nowhere", "folder": "data-00000000", "number": 6})]),
        (MessageKind.READ, [text({"url": "/nowhere/at/all"})]),
        (MessageKind.OPEN, [text(opening(SCHEMA))]),
        (MessageKind.NEXT, []),
        (MessageKind.RECALL, [text({"number": 0})]),
        (MessageKind.LOOKUP, [text(batch), ids.tobytes()]),
        (MessageKind.UPDATE, [text({"number": 0, "lr_scale": 1.0}), rows]),
        (MessageKind.HELLO, [text(a.hello())]),
        (MessageKind.PING, []),
    ]


def mutated(a: Attacker, parts: Sequence[bytes]) -> list[bytes]:
    """Change some bytes, lengths or the number of parts."""
    rng, changed = a.random, [bytearray(part) for part in parts] or [bytearray()]
    for _ in range(rng.randrange(1, 4)):
        part = rng.choice(changed)
        match rng.randrange(6):
            case 0 if part:
                part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
            case 1 if part:
                del part[rng.randrange(len(part)) :]
            case 2:
                part += rng.randbytes(rng.randrange(20))
            case 3:
                changed.insert(rng.randrange(len(changed) + 1), bytearray(rng.randbytes(rng.randrange(40))))
            case 4 if len(changed) > 1:
                changed.remove(part)
            case 5 if len(part) >= 8:
                extreme = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
                struct.pack_into("<Q", part, rng.randrange(len(part) - 7), extreme)
            case _:
                rng.shuffle(changed)
    return [bytes(part) for part in changed]


def distorted(a: Attacker, content: Any) -> Any:
    """Give some fields of a control text values of another type or size."""
    rng = a.random
    if isinstance(content, dict) and content and rng.random() < 0.9:
        key = rng.choice(sorted(content))
        match rng.randrange(4):
            case 0:
                return {k: v for k, v in content.items() if k != key}
            case 1:
                return {**content, key: rng.choice(NASTY)}
            case 2:
                return {**content, str(rng.choice(NASTY)): rng.choice(NASTY)}
            case _:
                return {**content, key: distorted(a, content[key])}
    if isinstance(content, list) and content and rng.random() < 0.9:
        at = rng.randrange(len(content))
        return [*content[:at], distorted(a, content[at]), *content[at + 1 :]]
    return rng.choice(NASTY)


def pooled(a: Attacker, name: str, make: Callable[[], bytes], size: int = 500) -> bytes:
    """Return `MANY` messages of a pool, of which a tenth is made anew."""
    pool = a.pool.setdefault(name, [])
    fresh = size if not pool else size // 10
    pool += [make() for _ in range(fresh)]
    del pool[: len(pool) - size]
    return b"".join(a.random.choices(pool, k=MANY))


def noise(a: Attacker) -> None:
    link = a.link()
    with contextlib.closing(link):
        for _ in range(20):
            a.send(link, a.random.randbytes(a.random.randrange(1, 20_000)))


def broken_streams(a: Attacker) -> None:
    """Send right messages of which one bit is wrong, wherever it is."""
    stream = bytearray(
        b"".join(message(Header(kind, 1, a.client(), 0), parts) for kind, parts in requests(a))
    )
    for _ in range(a.random.randrange(1, 3)):
        stream[a.random.randrange(len(stream))] ^= 1 << a.random.randrange(8)
    with contextlib.closing(a.link()) as link:
        a.send(link, bytes(stream), len(requests(a)))
        link.drain()


def broken_messages(a: Attacker) -> None:
    """Send messages in right frames, whose own checks fail."""

    def make() -> bytes:
        kind, parts = a.random.choice(requests(a))
        return frame(mutated(a, [encode(Header(kind, 1, a.client(), 1), digest(parts)), *parts]))

    with contextlib.closing(a.link()) as link:
        for _ in range(10):
            a.send(link, pooled(a, "broken", make), MANY)
            link.drain()


def strangers(a: Attacker) -> None:
    """Send right requests without a hello: random kinds, clients, numbers, steps and epochs."""

    def make() -> bytes:
        rng = a.random
        kind, parts = rng.choice(requests(a))
        kind = kind if rng.random() < 0.7 else MessageKind(rng.choice(list(MessageKind)))
        number = rng.choice([0, 1, 2**31, 2**64 - 1, rng.getrandbits(64)])
        scale = rng.choice([1.0, 0.0, -1.0, float("nan"), float("inf"), 1e308])
        header = Header(kind, rng.choice([0, 1, 2**32 - 1]), a.client(), number, number, number, scale)
        return message(header, [] if kind == MessageKind.HELLO else parts)

    with contextlib.closing(a.link()) as link:
        for _ in range(10):
            a.send(link, pooled(a, "strange", make), MANY)
            link.drain()


def sessions(a: Attacker) -> None:
    """Say hello rightly; then send requests in order whose content is wrong, some twice, some swapped."""
    with contextlib.closing(a.link()) as link:
        client, served = a.session(link)
        if not served:
            return
        for number in range(1, 300):
            kind, parts = a.random.choice(
                [r for r in requests(a) if r[0] not in (MessageKind.HELLO, MessageKind.OPEN)]
            )
            if a.random.random() < 0.5:
                if kind == MessageKind.UPDATE:
                    continue  # a wrong section might name rows of the honest client
                parts = mutated(a, parts)
            scale = a.random.choice([1.0, float("nan"), 1e308])
            data = message(Header(kind, 1, client, number, max(0, number - 5), 0, scale), parts)
            a.send(link, data * a.random.choice([1, 1, 1, 2]))
            link.drain()


def hellos(a: Attacker) -> None:
    """Say hello with fields of wrong type, size or none."""

    def make() -> bytes:
        content = a.hello()
        for _ in range(a.random.randrange(1, 3)):
            content = distorted(a, content)
        return message(Header(MessageKind.HELLO, 1, a.client()), [text(content)])

    with contextlib.closing(a.link()) as link:
        a.send(link, pooled(a, "hello", make, 200)[: 1 << 20], 100)
        link.drain()


def many_hellos(a: Attacker) -> None:
    """Become a thousand clients of one connection."""
    said = [message(Header(MessageKind.HELLO, 1, a.client()), [text(a.hello())]) for _ in range(1024)]
    with contextlib.closing(a.link()) as link:
        for hello in said:
            a.send(link, hello)
            link.drain()


def generations(a: Attacker) -> None:
    """Claim to be of a newer group of workers."""
    for generation in (2**31, 2**63, 10**300, float("inf"), True, "9"):
        with contextlib.closing(a.link()) as link:
            hello = a.hello() | {"generation": generation, "run": a.random.choice([RUN, f"{a.client():x}"])}
            a.send(link, message(Header(MessageKind.HELLO, 1, a.client()), [text(hello)]))
            link.drain()


def loads(a: Attacker) -> None:
    """Announce rows that cannot be."""
    with contextlib.closing(a.link()) as link:
        client, served = a.session(link)
        for number, count in enumerate((-1, 0, True, 10**9, 10**30, 1e300, "1", None), 1):
            for part in (MessageKind.LOAD, MessageKind.EXPORT, MessageKind.OPEN):
                content = {
                    "table": "theirs",
                    "rows": count,
                    "columns": count,
                    "epoch": count,
                    "schema": count,
                }
                header = Header(part, 1, client, number if served else 1)
                a.send(link, message(header, [text(content), b"x" * 8]))
                link.drain()


def pings(a: Attacker) -> None:
    data = message(Header(MessageKind.PING, 1, a.client())) * MANY
    with contextlib.closing(a.link()) as link:
        for _ in range(30):
            a.send(link, data, MANY)
            link.drain()


def unread_pings(a: Attacker) -> None:
    """Flood with PINGs, read nothing, and end the connection with a reset; twenty at a time."""
    data = message(Header(MessageKind.PING, 1, a.client())) * MANY
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            link = stack.enter_context(contextlib.closing(a.link(window=4096)))
            link.socket.settimeout(0.5)
            for _ in range(5):
                try:
                    a.send(link, data, MANY)
                except OSError:
                    break
            if a.random.random() < 0.5:
                link.abort()


def unread_answers(a: Attacker) -> None:
    """Ask for large answers, acknowledged or not, and read none."""
    ids = np.arange(20_000, dtype=np.uint64) + np.uint64(a.random.getrandbits(40))
    lookup = _raw(pack([Section(1, np.array([0, len(ids)], np.int64), ids)]))
    with contextlib.closing(a.link(window=4096)) as link:
        client, served = a.session(link)
        acknowledge = a.random.random() < 0.5
        for number in range(1, 200 if served else 2):
            header = Header(MessageKind.PEEK, 1, client, number, number if acknowledge else 0)
            a.send(link, message(header, lookup))
        time.sleep(2.0)


def come_and_go(a: Attacker) -> None:
    for _ in range(200):
        with contextlib.closing(a.link() if a.key is None else Link(a.address)) as link:
            if a.random.random() < 0.5:
                a.send(link, a.random.randbytes(a.random.randrange(1, 100)))
            if a.random.random() < 0.5:
                link.abort()


def slow(a: Attacker) -> None:
    """Hold connections open and send a byte now and then."""
    data = message(Header(MessageKind.PING, 1, a.client()))
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(contextlib.closing(Link(a.address))) for _ in range(100)]
        for at in range(10):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(data[at : at + 1])
            time.sleep(0.5)


def empty_sections(a: Attacker) -> None:
    """Send an index of a million sections without ids."""
    count = 1_000_000
    descriptor = struct.pack("<HBBIIIf", 1, 0, 255, 1, 0, 0, 1.0)
    index = struct.pack("<I", count) + descriptor * count + bytes(8 * count)
    with contextlib.closing(a.link()) as link:
        client, _ = a.session(link)
        a.send(link, message(Header(MessageKind.PEEK, 1, client, 1), [index]))
        time.sleep(1.0)


def far_steps(a: Attacker) -> None:
    """In `sync`, ask for steps that will never be."""
    with contextlib.closing(a.link()) as link:
        client, _ = a.session(link, mode="sync")
        lookup = _raw(pack([Section(1, np.array([0, 1], np.int64), np.ones(1, np.uint64))]))
        for number in range(1, 4200):
            step = a.random.choice([10**6, 2**63, 2**64 - 1])
            a.send(link, message(Header(MessageKind.LOOKUP, 1, client, number, 0, step), lookup))
        link.drain()


def many_parts(a: Attacker) -> None:
    """Send as many parts as there may be, and more, and say that there are others than come."""
    for count in (8191, 8192, 65_535):
        parts = [encode(Header(MessageKind.PEEK, 1, a.client(), 1), digest([])), *[b"x"] * (count - 1)]
        with contextlib.closing(a.link()) as link:
            a.send(link, frame(parts, count=min(count, 65_535)))
    for sizes in ([2**63], [2**64 - 1], [80, 2**40], [0, 0, 0]):
        with contextlib.closing(a.link()) as link:
            a.send(link, frame([b""] * len(sizes), sizes=sizes) + bytes(100_000))


def theft(a: Attacker) -> None:
    """Use the number of another client, from another connection."""
    with contextlib.closing(a.link()) as one, contextlib.closing(a.link()) as other:
        client, _ = a.session(one)
        data = b"".join(
            message(Header(MessageKind.STATISTICS, 1, client, number)) for number in range(1, 200)
        )
        for link in (one, other):
            a.send(link, data, 199)
            link.drain()


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (
        noise, broken_streams, broken_messages, strangers, sessions, hellos, many_hellos, generations, loads,
        pings, unread_pings, unread_answers, come_and_go, slow, empty_sections, far_steps, many_parts, theft,
    )
}  # fmt: skip
COMMON = ("broken_messages", "strangers", "pings")
"""Attacks that send most messages; half of the rounds are theirs."""


def attack(
    role: str,
    address: str,
    key: Path | None,
    seed: str,
    delivered: Synchronized[int],
    only: Sequence[str] = (),
) -> None:
    """Attack with one after another, drawn at random, until this process is ended."""
    os.nice(POLITE)
    source = random.Random(seed)
    a = Attacker(role, address, read_key(key) if key else None, source, delivered)
    while True:
        name = source.choice(only or (COMMON if source.random() < 0.5 else sorted(ATTACKS)))
        try:
            ATTACKS[name](a)
        except OSError:
            time.sleep(0.01)  # refused or cut off: as it should be


def attack_endpoint(address: str, seed: str, delivered: Synchronized[int]) -> None:
    """Attack a metrics endpoint until this process is ended."""
    os.nice(POLITE)
    rng = random.Random(seed)
    pieces: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.randrange(1, 3000)),
        lambda: b"GET /metrics HTTP/1.1\r\n\r\n" * 50,
        lambda: b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 200_000,
        lambda: b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        lambda: b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        lambda: b"GET /metrics HTTP/1.1\r\n" + b"a:b\r\n" * 10_000,
        lambda: b"GET",
    ]
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.ExitStack() as stack:
            for _ in range(rng.choice([1, 10, 60])):
                client = stack.enter_context(contextlib.closing(socket.socket()))
                client.settimeout(SECONDS)
                with contextlib.suppress(OSError):
                    client.connect((host, int(port)))
                    client.sendall(rng.choice(pieces)())
                    with delivered.get_lock():
                        delivered.value += 1
            time.sleep(rng.choice([0.0, 0.2, 1.0]))
