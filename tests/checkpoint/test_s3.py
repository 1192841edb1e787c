"""Snapshots in an S3-compatible store: a real server on loopback, reached through s3fs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("s3fs", reason="satrap[s3] is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

import s3fs

from satrap.checkpoint import Series, read_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.rewrite import compact
from satrap.errors import CheckpointError
from satrap.store import RowChunk
from tests import faults
from tests.checkpoint.s3 import Line, server
from tests.checkpoint.states import Trained, committed, content, equal, make_checkpoint

pytestmark = [
    pytest.mark.cluster,  # a server in a process of its own
    pytest.mark.filterwarnings("default"),  # warnings of the S3 client are not ours
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server() as port:
        yield port


PART = 5 << 20
"""Bytes of a part of an upload: the least that the protocol allows."""


@pytest.fixture
def line(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line(port)
    values = {"ENDPOINT_URL": f"http://127.0.0.1:{line.port}", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}
    values |= {"DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1", "EC2_METADATA_DISABLED": "true"}
    for key, value in values.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", PART)
    s3fs.S3FileSystem.clear_instance_cache()
    yield line
    s3fs.S3FileSystem.clear_instance_cache()
    line.cut()


@pytest.fixture
def url(line: Line, request: pytest.FixtureRequest) -> str:
    name = f"b{abs(hash(request.node.nodeid)) % 10**12}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}/runs/x"


def found(url: str) -> dict[int, float]:
    return committed(url)  # type: ignore[arg-type]


def objects(url: str) -> list[str]:
    fs = s3fs.S3FileSystem()
    fs.invalidate_cache()
    return sorted(fs.find(url))


def test_the_newest_stay_and_leftovers_go(url: str) -> None:
    series = Series(url, keep=2)
    assert series.latest() is None
    for step in (10, 20, 30):
        series.write(step, make_checkpoint(step))
    assert found(url) == {20: 20, 30: 30}
    folders = {name.split("/")[3] for name in objects(url)}
    assert folders == {"step-00000020", "step-00000030"}
    series.write(30, make_checkpoint(31))  # over an older one
    assert found(url) == {20: 20, 30: 31}
    assert (
        len({name.split("/")[4] for name in objects(f"{url}/step-00000030")}) == 2
    )  # manifest, one data folder


@pytest.mark.slow
def test_every_request_failing_once(url: str) -> None:
    for k in range(1, 99):
        place = f"{url}/{k}"
        series = Series(place)
        series.write(1, make_checkpoint(1))
        with faults.armed("disk.*", faults.fail(lambda: OSError(5, "no")), at=k) as fault:
            try:
                series.write(2, make_checkpoint(2))
                done = True
            except CheckpointError:
                done = False
        assert found(place) in ([{1: 1, 2: 2}] if done else [{1: 1}, {1: 1, 2: 2}])
        if not fault.fired:
            assert k > 5
            return
    raise AssertionError("the save never ended")


def test_a_flipped_byte_is_named_and_repaired(url: str) -> None:
    series, fs = Series(url, keep=3), s3fs.S3FileSystem()
    for step in (1, 2):
        series.write(step, make_checkpoint(step))
    series.verify(2)
    name = next(name for name in objects(f"{url}/step-00000002") if name.endswith("table-000.arrow"))
    data = bytearray(fs.cat_file(name))
    data[len(data) // 2] ^= 1
    fs.pipe_file(name, bytes(data))
    good, removed = series.repair()
    assert (good, sorted(removed)) == (1, [2])
    assert "table-000.arrow" in removed[2].where
    assert found(url) == {1: 1}


def test_deltas(url: str) -> None:
    run = Trained(Path("unused"))
    run.series = Series(url, keep=2)
    held = {}
    for _ in range(3):
        run.train()
        held[run.step] = run.save()
    compact(run.series.place(2))
    for step in (1, 2, 3):
        assert content(iter(run.series.read(step)[1].chunks)) == held[step]
    s3fs.S3FileSystem().rm(f"{url}/step-00000002", recursive=True)
    with pytest.raises(CheckpointError, match="follows step-00000002, which is missing"):
        run.series.read(3)


def big(step: int) -> Iterator[tuple[str, RowChunk]]:
    """Rows of 6 MB: more than one part of an upload."""
    for i in range(15):
        ids = np.arange(i * 1000, (i + 1) * 1000, dtype=np.uint64)
        yield (
            "user",
            RowChunk("user", ids, np.full((1000, 98), step, np.float32), np.empty((1000, 0), np.float32)),
        )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "after",
    [*(pytest.param(size, marks=SLOW) for size in (0, 1000, 5_500_000)), 2_000_000],
)
def test_a_server_that_dies_in_a_save(after: int, url: str, line: Line) -> None:
    """The save fails loudly, the old snapshot is there when the server is back, and the next save works."""
    series = Series(url)
    series.write(1, make_checkpoint(1))
    state = make_checkpoint(2)
    state.chunks = big(2)
    line.cut_after = after
    with pytest.raises(CheckpointError, match="could not be written"):
        series.write(2, state)
    line.mend()
    assert found(url) == {1: 1}
    series.write(3, make_checkpoint(3))
    assert found(url) == {1: 1, 3: 3}
    assert not any("step-00000002" in name for name in objects(url))


def test_a_server_that_is_not_there(url: str, line: Line) -> None:
    series = Series(url)
    series.write(1, make_checkpoint(1))
    line.cut()
    with pytest.raises(CheckpointError, match="cannot be listed"):
        series.steps()
    with pytest.raises(CheckpointError):
        read_checkpoint(series.place(1))
    line.mend()
    equal(make_checkpoint(1), read_checkpoint(series.place(1)))


KILLED = """
import sys
import s3fs
from tests import faults
from satrap.checkpoint import Series
from tests.checkpoint.states import make_checkpoint
from tests.checkpoint.test_s3 import PART, big
s3fs.S3FileSystem.default_block_size = PART
state = make_checkpoint(2)
state.chunks = big(2)
with faults.armed(sys.argv[2], faults.kill, at=int(sys.argv[3])):
    Series(sys.argv[1]).write(2, state)
"""


@SLOW
@pytest.mark.parametrize(
    ("point", "at"), [("disk.write", 18), ("checkpoint.data_written", 1), ("checkpoint.committed", 1)]
)
def test_a_process_killed_in_a_save(point: str, at: int, url: str) -> None:
    """In an upload of several parts, before the manifest, after it."""
    Series(url).write(1, make_checkpoint(1))
    command = [sys.executable, "-c", KILLED, url, point, str(at)]
    assert subprocess.run(command, check=False, timeout=100).returncode == -9
    assert Series(url).steps() == ([1, 2] if point == "checkpoint.committed" else [1])
    Series(url, keep=1).write(3, make_checkpoint(3))
    assert found(url) == {3: 3}
    assert all("step-00000003" in name for name in objects(url))


def test_two_processes_that_commit_the_same_step(url: str) -> None:
    """The manifest is put only where there is none: the second one is told, and the first one stays."""
    storage, other = Storage(f"{url}/a"), Storage(f"{url}/a")
    storage.put("manifest.json", b"one", new=True)
    with pytest.raises(FileExistsError):
        other.put("manifest.json", b"two", new=True)
    assert storage.read_start("manifest.json", 99) == b"one"


def test_a_save_that_fails_leaves_no_part_of_an_upload(url: str) -> None:
    fs, seen = s3fs.S3FileSystem(), list[int]()

    def uploads() -> int:
        return len(fs.call_s3("list_multipart_uploads", Bucket=url.split("/")[2]).get("Uploads", []))

    def full(_: str) -> None:
        seen.append(uploads())
        if seen[-1]:
            raise OSError(28, "No space left on device")

    state = make_checkpoint(2)
    state.chunks = big(2)
    with faults.armed("disk.write", full, every=1), pytest.raises(CheckpointError, match="No space"):
        Series(url).write(2, state)
    assert seen[-1] == 1
    assert uploads() == 0


def test_what_another_process_has_written_or_removed_is_seen(url: str) -> None:
    storage, other = Storage(url), s3fs.S3FileSystem(skip_instance_cache=True)
    storage.put("a", b"1")
    assert storage.names() == ["a"]
    other.pipe_file(f"{url}/b", b"2")
    assert storage.exists("b")
    assert storage.names() == ["a", "b"]
    other.rm(f"{url}/b")
    assert not storage.exists("b")
    assert storage.names() == ["a"]
