"""Bytes from anyone: refused, counted, and of no effect on others."""

from __future__ import annotations

import random
import ssl
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.servers import Limits, ServersExchange, ShardServer
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc import create_key, read_key
from satrap.rpc.wire.frames import (
    FAILURE,
    HEADER_BYTES,
    VERSION,
    Code,
    Header,
    MessageKind,
    digest,
    encode,
)
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store import Eviction, StoreConfig, Tier
from tests.contract.parties import SEED, TABLES, Process, connect, request, threads
from tests.rpc import plain
from tests.support.examples import examples
from tests.support.strangers import stranger

MEMORY = 1 << 20


def serves(server: ShardServer) -> bool:
    """Whether an honest client is served."""
    exchange = connect([server.address])
    [rows] = exchange.lookup([request(0, [1], [2])], create=True).result()
    exchange.close()
    return rows.shape == (2, 4)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def valid_messages() -> list[tuple[Header, list[bytes]]]:
    ids = np.arange(6, dtype=np.uint64)
    splits = np.array([0, 3, 6], np.int64)
    rows = np.ones(24, np.float32).tobytes()
    lookup = [bytes(memoryview(p)) for p in pack([Section(0, splits, ids)])]
    update = [bytes(memoryview(p)) for p in pack([Section(0, splits, ids, 0, 4, 1.0, rows)])]
    export = [pack_text({"table": "a"})]
    load = [pack_text({"table": "a", "rows": 1, "columns": {}}), ids[:1].tobytes(), rows[:16], rows[:16]]
    return [
        (Header(MessageKind.LOOKUP, 1), lookup),
        (Header(MessageKind.PEEK, 1), lookup),
        (Header(MessageKind.UPDATE, 1), update),
        (Header(MessageKind.EXPORT, 1), export),
        (Header(MessageKind.LOAD, 1), load),
        (Header(MessageKind.STATISTICS, 1), []),
        (Header(MessageKind.CUT, 1), [pack_text({"number": 5})]),
        (Header(MessageKind.JOB, 1), [pack_text({})]),
        (Header(MessageKind.READ, 1), [pack_text({"url": "/nowhere/at/all"})]),
        (
            Header(MessageKind.WRITE, 1),
            [pack_text({"url": "/nowhere", "folder": "data-00000000", "number": 6})],
        ),
        (Header(MessageKind.HELLO, 1), [pack_text({"tables": [{"name": "a"}]})]),
        (Header(MessageKind.PREFETCH, 1), lookup),
        (Header(MessageKind.BYE, 1), []),
    ]


def answered_messages() -> list[tuple[Header, list[bytes]]]:
    """Return those that are answered, and do not make an end."""
    return [m for m in valid_messages() if m[0].kind not in (MessageKind.PREFETCH, MessageKind.BYE)]


def mutate(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    changed = [bytearray(p) for p in parts]
    for _ in range(rng.randrange(1, 4)):
        if not changed:
            return [rng.randbytes(rng.randrange(50))]
        part = rng.choice(changed)
        match rng.randrange(4):
            case 0 if part:
                part[rng.randrange(len(part))] = rng.randrange(256)
            case 1 if part:
                del part[rng.randrange(len(part)) :]
            case 2:
                part += rng.randbytes(rng.randrange(20))
            case _:
                changed.insert(rng.randrange(len(changed) + 1), bytearray(rng.randbytes(8)))
    return [bytes(p) for p in changed]


def test_random_and_mutated_messages_change_nothing() -> None:
    rng, rounds = random.Random(4), examples(2000)
    with threads(1) as [server], stranger(server) as attacker:
        assert serves(server)
        for round_ in range(rounds):
            if round_ == rounds // 4:
                before = resident()
            header, parts = rng.choice(valid_messages())
            message = [encode(header, digest(parts)), *parts]
            attacker.send(*(mutate(rng, message) if rng.random() < 0.7 else [rng.randbytes(HEADER_BYTES)]))
            answer, _ = attacker.receive()
            assert answer.kind == FAILURE
        assert serves(server)
        assert resident() - before < 20 << 20
        assert server.counters.malformed > rounds * 3 // 4
        honest = connect([server.address])
        assert honest.telemetry.statistics().rows == 2
        honest.close()


def test_mutated_payloads_with_valid_checksums_never_end_the_server() -> None:
    rng, rounds = random.Random(5), examples(1000)
    with threads(1) as [server], stranger(server) as attacker:
        attacker.hello()
        sequence = 1
        for _ in range(rounds):
            header, parts = rng.choice(answered_messages())
            parts = mutate(rng, parts)
            sent = Header(
                header.kind, 1, 77, sequence, sequence, rng.choice([0, 2**63]), rng.choice([1, 1e30])
            )
            answer, _ = attacker.ask(sent, parts)
            sequence += answer.sequence == sequence
        assert sequence > rounds // 2
        assert serves(server)


def test_mutated_hints_are_not_answered_and_change_nothing(tmp_path: Path) -> None:
    rng = random.Random(6)
    store = StoreConfig(SEED, MEMORY, eviction=Eviction(), tier=Tier(str(tmp_path), 1 << 18))
    config = ShardConfig(TABLES, store, 0, ShardMap(1)).to_dict()
    [hint] = [parts for header, parts in valid_messages() if header.kind == MessageKind.PREFETCH]
    with threads(1, journal=tmp_path / "journal") as [server], stranger(server) as attacker:
        attacker.hello(**config)
        before = server.service.statistics()
        for _ in range(1000):
            parts = mutate(rng, hint)
            attacker.send(
                encode(Header(MessageKind.PREFETCH, 1, 77, rng.randrange(2**64)), digest(parts)), *parts
            )
        answer, _ = attacker.ask(
            Header(MessageKind.FLUSH, 1, 77, 1, 1)
        )  # none of them had a number or an answer
        assert answer.kind == MessageKind.FLUSH | 0x80
        after = server.service.statistics()
        assert after.server.messages == before.server.messages + 1001
        assert after.server.malformed == 0
        assert after.tier == before.tier
        assert after.tables == before.tables
        flush = after.server.journal_bytes - before.server.journal_bytes
        assert flush < 200  # the journal holds the FLUSH alone
        code, _ = attacker.refusal(Header(MessageKind.PREFETCH, 1, 5), hint)
        assert code == Code.UNKNOWN_CLIENT
        code, _ = attacker.refusal(Header(MessageKind.PREFETCH, 7, 77), hint)
        assert code == Code.EPOCH


@pytest.mark.parametrize(
    "changes",
    [
        {"forward": []},
        {"rank": -1},
        {"rank": 2, "world": 1},
        {"world": 10**12},
        {"tables": "x"},
        {"tables": [{"name": "a", "dim": 10**9, "optimizer": {"name": "sgd", "lr": 1}, "initial_scale": 1}]},
        {"tables": [{"name": "a", "dim": 4, "optimizer": {"name": "nope"}, "initial_scale": 1}]},
        {"tables": [{"name": "a", "dim": "4", "optimizer": None, "initial_scale": 1, "more": 2}]},
        {"seed": float("inf")},
        {"shards": 0},
        {"shard": 5},
        {"epoch": 0},
    ],
)
def test_impossible_hellos_are_refused(changes: dict[str, object]) -> None:
    with threads(1) as [server], stranger(server) as attacker:
        answer, [text] = attacker.hello(**changes)
        assert answer.kind == FAILURE
        assert unpack_text(text)["code"] == Code.CONFIG
        assert serves(server)


def test_a_client_without_a_hello_is_refused() -> None:
    with threads(1) as [server], stranger(server) as attacker:
        code, what = attacker.refusal(Header(MessageKind.CLEAR, 1, 5, 3))
        assert (code, "does not know this client" in what) == (Code.UNKNOWN_CLIENT, True)


def test_an_old_epoch_is_refused_and_the_request_can_be_made_again() -> None:
    with threads(1) as [server], stranger(server) as client:
        client.hello()
        code, what = client.refusal(Header(MessageKind.CLEAR, 7, 77, 1))
        assert code == Code.EPOCH
        assert "epoch 7 of the shard map, but the shard is at epoch 1" in what
        answer, _ = client.ask(Header(MessageKind.CLEAR, 1, 77, 1))
        assert answer.kind == MessageKind.CLEAR | 0x80


def test_an_old_protocol_version_is_refused_with_both_named() -> None:
    with threads(1) as [server], stranger(server) as client:
        data = bytearray(encode(Header(MessageKind.HELLO, client=9), digest([])))
        struct.pack_into("<H", data, 4, 0)
        struct.pack_into("<I", data, HEADER_BYTES - 4, zlib.crc32(bytes(data[: HEADER_BYTES - 4])))
        client.send(bytes(data))
        answer, [text] = client.receive()
        assert (answer.client, unpack_text(text)["code"]) == (9, Code.VERSION)
        assert (
            f"the other side uses protocol version 0, this side version {VERSION}"
            in unpack_text(text)["what"]
        )


def test_an_answer_over_the_limit_is_refused_before_it_is_made() -> None:
    with threads(1, limits=Limits(message_bytes=1 << 16)) as servers:
        exchange = connect([servers[0].address])
        with pytest.raises(Exception, match="the response would take 68000 bytes, but the limit is 65536"):
            exchange.lookup([request(1, list(range(1000)))], create=True).result()
        assert exchange.telemetry.statistics().rows == 0
        exchange.close()


def test_a_part_over_the_limit_closes_that_connection_only() -> None:
    with threads(1, limits=Limits(message_bytes=1 << 16)) as [server], stranger(server) as attacker:
        attacker.hello()
        before = resident()
        for _ in range(20):
            with suppress(ConnectionError):
                attacker.send(encode(Header(MessageKind.LOOKUP), digest([])), b"x" * (1 << 20))
        with pytest.raises(ConnectionError):
            attacker.receive()
        assert serves(server)
        assert resident() - before < 64 << 20


@pytest.mark.cluster
def test_too_many_clients_are_refused() -> None:
    with threads(1, limits=Limits(clients=2)) as [server]:
        exchanges = [connect([server.address]) for _ in range(2)]
        with pytest.raises(ExchangeError, match="already has 2 clients"):
            connect([server.address], deadline=2)
        exchanges.pop().close()
        exchanges.append(connect([server.address]))
        for exchange in exchanges:
            exchange.close()


@pytest.mark.cluster
def test_only_holders_of_the_key_are_served(tmp_path: Path) -> None:
    create_key(tmp_path / "right")
    create_key(tmp_path / "wrong")
    right, wrong = read_key(tmp_path / "right"), read_key(tmp_path / "wrong")
    with threads(1, key=right) as [server]:
        exchange = connect([server.address], key=right)
        exchange.lookup([request(0, [1], [2])], create=True).result()
        for key in (wrong, None):
            with pytest.raises(ExchangeError, match=r"the keys do not match|has not responded") as caught:
                connect([server.address], key=key, deadline=1.5)
            assert (tmp_path / "right").read_text().strip() not in str(caught.value)
        assert exchange.telemetry.statistics().rows == 2
        assert server.counters.malformed == 0
        exchange.close()
    with threads(1) as [server], pytest.raises(ExchangeError, match=r"keys do not match|has not responded"):
        connect([server.address], key=right, deadline=1.5)


def test_who_knows_only_the_certificate_is_not_served(tmp_path: Path) -> None:
    """The certificate is public: any server shows it to whoever asks."""
    create_key(tmp_path / "key")
    key = read_key(tmp_path / "key")
    with threads(1, key=key) as [server]:
        host, _, port = server.address.rpartition(":")
        shown = ssl.get_server_certificate((host, int(port)))
        for context, served in (*((c, False) for c in impostors(shown, tmp_path)), (None, True)):
            before = server.counters.messages
            with plain.connect(server.address) as sock, ExitStack() as stack:
                if context is None:
                    tls = key.protect(sock, server=False)
                else:
                    tls = context.wrap_socket(sock, do_handshake_on_connect=False)
                stack.enter_context(tls)
                refused = False
                try:
                    tls.do_handshake()
                    plain.send(tls, [encode(Header(MessageKind.PING), digest([]))])
                    plain.receive(tls)
                except OSError:
                    refused = True
                assert refused != served
            assert server.counters.messages - before == served


def impostors(certificate: str, folder: Path) -> Iterator[ssl.SSLContext]:
    """Clients that believe the server's certificate: without one, and with a key and name of their own."""
    private = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "satrap")])
    forged = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    forged = forged.public_key(private.public_key())
    forged = forged.not_valid_before(datetime(2000, 1, 1)).not_valid_after(datetime(2100, 1, 1))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = private.private_bytes(encoding, form, serialization.NoEncryption())
    (folder / "forged").write_bytes(forged.sign(private, None).public_bytes(encoding) + secret)
    for own in (None, folder / "forged"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=certificate)
        if own is not None:
            context.load_cert_chain(own)
        yield context


def test_shards_elsewhere_need_a_key() -> None:
    with pytest.raises(ConfigError, match=r"shard 10\.0\.0\.1:5000 is on another machine and needs a key"):
        ServersExchange(["10.0.0.1:5000"], TABLES)


def test_the_process_ends_cleanly_and_keeps_its_key_to_itself(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    with Process("127.0.0.1:0", "--key", str(tmp_path / "key")) as process:
        check_process(process, tmp_path)


def check_process(process: Process, tmp_path: Path) -> None:
    assert process.line == f"satrap shard ready on {process.address} (encrypted)\n"
    arguments = Path(f"/proc/{process.popen.pid}/cmdline").read_bytes()
    assert (tmp_path / "key").read_bytes().strip() not in arguments
    exchange = connect([process.address], key=read_key(tmp_path / "key"))
    exchange.close()
    process.popen.terminate()
    assert process.popen.wait(5) == 0
    assert process.popen.stderr is not None
    assert process.popen.stderr.read() == ""
