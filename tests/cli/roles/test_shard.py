"""`satrap shard`: one line when ready, one error when not, and it ends with whoever started it."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from satrap.exchange import LookupRequest
from satrap.exchange.servers import ServersExchange
from satrap.optim import SGD
from satrap.rpc import create_key
from satrap.runtime.events import Failed, Ready, decode
from satrap.runtime.numba_cache import COMPILING
from satrap.schema import Table
from tests.cli.command import SATRAP, satrap


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "needs a key"),
        (["--listen", "nonsense"], "'nonsense' is not HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--key", "missing"], "cannot read the key file"),
        (["--listen", "127.0.0.1:0", "--metrics", "nonsense"], "'nonsense' is not HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--metrics", "192.0.2.1:1"], "the metrics endpoint cannot listen on"),
    ],
)
def test_bad_input_is_one_error(arguments: list[str], message: str) -> None:
    satrap("shard", *arguments).assert_refused(message)


def test_its_launcher_hears_of_a_users_mistake() -> None:
    """A metrics port in use was reported as a shard that may have run out of memory."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        process = popen("--events", "--metrics", f"127.0.0.1:{port}")
        out, err = process.communicate(timeout=120)
    events = [event for line in out.splitlines() if (event := decode(line)) is not None]
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert failed.error.what.startswith(f"the metrics endpoint cannot listen on 127.0.0.1:{port}")
    assert process.returncode == 2
    assert "cannot listen" in err


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    answer = satrap("shard", "--listen", "0.0.0.0:0", "--key", tmp_path / "key")
    answer.assert_refused("its mode is 0644")


def test_an_address_is_needed() -> None:
    assert satrap("shard").code == 2


def popen(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SATRAP, "shard", "--listen", "127.0.0.1:0", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(*options: str) -> tuple[subprocess.Popen[str], str]:
    process = popen(*options)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("satrap shard ready on 127.0.0.1:")
    return process, line.split()[4]


def test_it_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    process, address = start()
    exchange = ServersExchange([address], [Table("a", dim=4, optimizer=SGD(lr=1.0))])
    request = LookupRequest(0, np.arange(5, dtype=np.uint64), np.array([0, 5]))
    [rows] = exchange.lookup([request], create=True).result()
    assert rows.shape == (5, 4)
    assert exchange.telemetry.statistics().rows == 5
    exchange.close()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=250)
    err = err.removeprefix(f"{COMPILING}\n")  # the first process of this machine
    assert (process.returncode, out, err) == (0, "", "")


def test_it_stops_when_its_input_ends() -> None:
    process, _ = start("--stop-at-eof")
    _, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, "")


def test_with_events_the_line_for_people_goes_to_the_log() -> None:
    process = popen("--stop-at-eof", "--events")
    assert process.stdout is not None
    event = decode(process.stdout.readline())
    assert isinstance(event, Ready)
    out, err = process.communicate(timeout=250)
    assert (process.returncode, out) == (0, "")
    assert err.startswith(f"satrap shard ready on {event.address} (")


def test_a_damaged_journal_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "00000000.journal").write_bytes(b"x" * 100)
    answer = satrap("shard", "--listen", "127.0.0.1:0", "--journal", tmp_path)
    answer.assert_refused("the journal is damaged: the file does not begin as a journal", code=1)


def test_a_killed_shard_comes_back_from_its_journal(tmp_path: Path) -> None:
    process, address = start("--journal", str(tmp_path))
    exchange = ServersExchange([address], [Table("a", dim=4, optimizer=SGD(lr=1.0))])
    request = LookupRequest(0, np.arange(5, dtype=np.uint64), np.array([0, 5]))
    lookup = exchange.lookup([request], create=True)
    [before] = lookup.result()
    exchange.apply(lookup, [np.ones((5, 4), np.float32)], lr_scale=1.0)
    exchange.flush()
    process.kill()
    process.communicate()
    again = subprocess.Popen(
        [SATRAP, "shard", "--listen", address, "--journal", tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert again.stdout is not None
    assert again.stdout.readline() == (
        "satrap shard recovering from the start of the run + journal (1 updates)\n"
    )
    [after] = exchange.lookup([request], create=True).result()
    np.testing.assert_allclose(before - after, 1.0, atol=2e-3)
    exchange.close()
    again.terminate()
    again.communicate(timeout=250)
