"""Manifests: what one says is what was written, or an error, also when somebody else wrote it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap.checkpoint import manifest, read_checkpoint, verify, write_checkpoint
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.files.storage import BLOCK, FileEntry, Storage
from satrap.checkpoint.manifest import (
    MANIFEST_BYTES,
    MANIFEST_VALUES,
    ChainLink,
    Manifest,
    read_manifest,
    write_manifest,
)
from satrap.checkpoint.rewrite import compact, forget, rewrite_rows
from satrap.errors import CheckpointError
from satrap.export.reshard import reshard_everywhere
from satrap.export.row_files import export, forget_everywhere
from tests.checkpoint.forged import body_of, forge, signed
from tests.checkpoint.states import make_checkpoint
from tests.support.covering import covering
from tests.support.examples import examples
from tests.support.manifests import json_values, places


def test_what_is_written_is_read(tmp_path: Path) -> None:
    sums = np.random.default_rng(0).integers(0, 2**32, 3).tolist()
    files = {
        "model.safetensors": FileEntry(0),
        "table-000.shard-0001.arrow": FileEntry(2 * BLOCK + 1, sums, "strange ü/\n", 7, [5, 4096]),
    }
    for delta in (None, ChainLink("step-00000002", 1, "step-00000001", "cafe")):
        manifest = Manifest("data-1", {"best": "best-00000001", "x": [1.5, None]}, files, delta, "id")
        write_manifest(Storage(str(tmp_path)), manifest)
        assert read_manifest(Storage(str(tmp_path))) == manifest


def test_what_older_checkpoints_and_other_programs_rely_on(tmp_path: Path) -> None:
    files = {"model.safetensors": FileEntry(5, [258]), "table-000.arrow": FileEntry(3, [1], "t", 2, [0, 9])}
    plain = Manifest("data-1", {}, files)
    assert (plain.bytes, plain.rows(), len(plain.id), plain.delta) == (8, {"t": 2}, 16, None)
    assert plain.id != Manifest("data-1", {}, files).id
    write_manifest(Storage(str(tmp_path)), plain)
    assert {name: body_of(tmp_path)[name] for name in ("format", "delta", "data", "settings", "files")} == {
        "format": 8,
        "delta": None,
        "data": "data-1",
        "settings": {},
        "files": {
            "model.safetensors": {"bytes": 5, "crc32": "AgEAAA=="},
            "table-000.arrow": {"bytes": 3, "crc32": "AQAAAA==", "table": "t", "rows": 2, "buckets": [0, 9]},
        },
    }
    assert (BLOCK, MANIFEST_BYTES, MANIFEST_VALUES) == (2**20, 2**27, 2**21)


def test_as_many_values_as_a_reader_takes_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage, full = Storage(str(tmp_path)), Manifest("data-1", {"x": [0] * 50}, {})
    write_manifest(storage, full)
    text = (tmp_path / "manifest.json").read_bytes()
    for name, most in (
        ("MANIFEST_VALUES", sum(map(text.count, (b",", b"[", b"{")))),
        ("MANIFEST_BYTES", len(text)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(manifest, name, most)
            write_manifest(storage, full)
            assert read_manifest(storage) == full
            patched.setattr(manifest, name, most - 1)
            with pytest.raises(CheckpointError, match="too many files or too large settings"):
                write_manifest(storage, full)
            with pytest.raises(CheckpointError, match="the manifest is damaged"):
                read_manifest(storage)


NO_FILE = r"symbolic link|not a regular file"
OUTSIDE = [
    "../victim",
    "../../victim",
    "x/../../victim",
    "/etc/passwd",
    "..",
    ".",
    "",
    ".hidden",
    "a/b",
    "a\0b",
]
USES: dict[str, Callable[[str], object]] = {
    "read": lambda url: list(read_checkpoint(url).chunks),
    "verify": verify,
    "forget": lambda url: forget(url, "user", 7),
    "forget everywhere": lambda url: forget_everywhere(url, "user", "7", hashed=True),
    "reshard": lambda url: reshard_everywhere(url, 3),
    "compact": compact,
    "export": lambda url: export(url, f"{url}-exported"),
    "rewrite": lambda url: rewrite_rows(url, lambda *_: {}),
}


@pytest.mark.parametrize(("kind", "name", "use"), covering(["model", "table", "data"], OUTSIDE, list(USES)))
def test_no_name_leads_outside(kind: str, name: str, use: str, tmp_path: Path) -> None:
    """A file of the manifest has the name of one outside, which has the content that the entry says."""
    place, victim = tmp_path / "deep" / "run", tmp_path / "deep" / "victim"
    write_checkpoint(str(place), make_checkpoint())
    files = body_of(place)["files"]
    old = next(file for file, entry in files.items() if ("table" in entry) == (kind == "table"))
    for at in (victim, tmp_path / "victim", place / "victim"):
        at.write_bytes((next(place.glob("data-*")) / old).read_bytes())

    def change(body: Any) -> None:
        if kind == "data":
            body["data"] = name
        else:
            body["files"][name] = body["files"].pop(old)

    forge(place, change)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="not a valid file name"):
        USES[use](str(place))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", OUTSIDE[:7])
def test_what_a_delta_follows_and_the_best_weights_lie_beside_it(name: str, tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    whole = body_of(tmp_path)
    forge(tmp_path, lambda body: body["settings"].update(best=name or "/"))
    with pytest.raises(CheckpointError, match="not a valid file name"):
        read_manifest(Storage(str(tmp_path)))
    link = {"name": tmp_path.name, "number": 1, "previous": name, "previous_id": whole["id"]}
    (tmp_path / "manifest.json").write_bytes(signed({**whole, "delta": link}))
    with pytest.raises(CheckpointError, match="not a valid file name"):
        open_chain(str(tmp_path))


def test_no_file_is_written_under_another_name(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "run"))
    for use in (
        lambda: storage.path("../x"),
        lambda: storage.remove("data/../../x"),
        lambda: storage.writer("../x").__enter__(),
        lambda: write_manifest(storage, Manifest("data-1", {}, {"../x": FileEntry(0)})),
    ):
        with pytest.raises(CheckpointError, match="not a valid file name"):
            use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["link", "folder behind a link", "pipe", "folder", "device"])
@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "table-000.arrow"])
def test_only_regular_files_are_opened(what: str, file: str, tmp_path: Path) -> None:
    place = tmp_path / "run"
    write_checkpoint(str(place), make_checkpoint())
    data = next(place.glob("data-*"))
    victim = place / file if file == "manifest.json" else data / file
    elsewhere = tmp_path / "elsewhere"
    if what == "folder behind a link":
        data.rename(elsewhere)
        data.symlink_to(elsewhere)
    else:
        victim.rename(elsewhere)
        if what == "link":
            victim.symlink_to(elsewhere)
        elif what == "device":
            victim.symlink_to("/dev/zero")
        else:
            os.mkfifo(victim) if what == "pipe" else victim.mkdir()
    with pytest.raises(CheckpointError, match=NO_FILE):
        list(read_checkpoint(str(place)).chunks)
    with pytest.raises(CheckpointError, match=NO_FILE):
        verify(str(place))


def test_a_checkpoint_may_lie_behind_a_link(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path / "run"), make_checkpoint())
    (tmp_path / "newest").symlink_to(tmp_path / "run")
    verify(str(tmp_path / "newest"))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_deltas_that_follow_each_other_in_a_circle(length: int, tmp_path: Path) -> None:
    for at in range(length):
        folder = tmp_path / f"step-{at:08d}"
        write_checkpoint(str(folder), make_checkpoint())
        link = {"name": folder.name, "number": at + 1, "previous_id": "same"}
        before = f"step-{(at - 1) % length:08d}"
        forge(
            folder,
            lambda body, link=link, before=before: body.update(id="same", delta={**link, "previous": before}),
        )
    for at in range(length):
        with pytest.raises(CheckpointError, match="follows another"):
            open_chain(str(tmp_path / f"step-{at:08d}"))


WRONG: dict[str, Callable[[Any], object]] = {
    "settings": lambda body: body.update(settings=[]),
    "bytes": lambda body: body["files"]["model.safetensors"].update(bytes="x"),
    "true bytes": lambda body: body["files"]["model.safetensors"].update(bytes=True),
    "negative bytes": lambda body: body["files"]["model.safetensors"].update(bytes=-1),
    "huge bytes": lambda body: body["files"]["model.safetensors"].update(bytes=10**30),
    "no sums": lambda body: body["files"]["model.safetensors"].update(crc32=""),
    "sums as a list": lambda body: body["files"]["model.safetensors"].update(crc32=[1]),
    "buckets": lambda body: body["files"]["table-000.arrow"].update(buckets=["a", "b"]),
    "one bucket": lambda body: body["files"]["table-000.arrow"].update(buckets=[1]),
    "rows": lambda body: body["files"]["table-000.arrow"].update(rows=1.5),
    "table": lambda body: body["files"]["table-000.arrow"].update(table=5),
    "surrogate": lambda body: body["files"]["table-000.arrow"].update(table="\ud800"),
    "unknown": lambda body: body["files"]["table-000.arrow"].update(more=1),
    "files": lambda body: body.update(files=[]),
    "id": lambda body: body.update(id=None),
    "delta": lambda body: body.update(delta={"name": "x"}),
    "delta number": lambda body: body.update(
        delta={"name": "x", "number": 1e300, "previous": "y", "previous_id": ""}
    ),
    "format": lambda body: body.update(format="5"),
    "deep": lambda body: body.update(settings=deep(900)),
}


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("wrong", WRONG)
def test_a_manifest_with_a_right_digest_and_wrong_values(wrong: str, tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    forge(tmp_path, WRONG[wrong])
    if wrong == "deep":
        (tmp_path / "manifest.json").write_bytes(b'{"a":' * 100_000)
    with pytest.raises(CheckpointError, match="manifest is damaged"):
        verify(str(tmp_path))


def limited(code: str, *arguments: object, megabytes: int = 1500) -> subprocess.CompletedProcess[str]:
    """Run code in a process of little memory, for at most a minute."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))

    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
    )


READ = """
import sys
from satrap.checkpoint.chain import open_chain
from satrap.errors import CheckpointError
for place in sys.argv[1:]:
    try:
        open_chain(place)
    except CheckpointError as error:
        print(error.where, error.what)
"""


@pytest.mark.cluster
def test_a_large_manifest_takes_little_memory(tmp_path: Path) -> None:
    """Of 10 TB of nothing, of 100 MB that would be gigabytes of lists, and of one byte more than allowed."""
    paths = [tmp_path / name / "manifest.json" for name in ("zeros", "lists", "text")]
    for path in paths:
        path.parent.mkdir()
    with paths[0].open("wb") as file:
        file.truncate(10 << 40)
    paths[1].write_bytes(b"[" + b"[]," * 33_000_000 + b"[]]")
    paths[2].write_bytes(b" " * (MANIFEST_BYTES + 1))
    done = limited(READ, *(path.parent for path in paths))
    said = [f"{path} the manifest is damaged" for path in paths]
    assert done.stdout.splitlines() == said, done.stderr


@settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_any_other_value_is_an_error_or_a_correct_load(valid: Path, data: st.DataObject) -> None:
    """One value of a valid manifest is replaced, removed, or moved to another key."""
    whole = (valid / "manifest.json").read_bytes()
    body = body_of(valid)
    *above, last = data.draw(st.sampled_from(places(body)[1:]))
    holder = body
    for key in above:
        holder = holder[key]
    match data.draw(st.sampled_from(["replace", "remove", "rename"])):
        case "replace":
            holder[last] = data.draw(json_values)
        case "remove":
            del holder[last]
        case "rename" if isinstance(holder, dict):
            holder[data.draw(st.text(max_size=8) | st.sampled_from(["../x", "model.safetensors"]))] = (
                holder.pop(last)
            )
    try:
        (valid / "manifest.json").write_bytes(signed(body))
        read = read_checkpoint(str(valid))
        rows = sum(len(chunk.ids) for _, chunk in read.chunks)
        verify(str(valid))
        assert rows == sum(read_manifest(Storage(str(valid))).rows().values())
    except CheckpointError:
        pass
    finally:
        (valid / "manifest.json").write_bytes(whole)


@settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(text=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_other_text_is_an_error(valid: Path, text: bytes) -> None:
    whole = (valid / "manifest.json").read_bytes()
    try:
        (valid / "manifest.json").write_bytes(text)
        with pytest.raises(CheckpointError):
            verify(str(valid))
    finally:
        (valid / "manifest.json").write_bytes(whole)
