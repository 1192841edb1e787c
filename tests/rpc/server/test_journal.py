"""The file: what was written whole is read back; anything else is cut off or named."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from satrap.errors import CheckpointError, ConfigError, StoreError
from satrap.rpc.server.journal import _CHECK, _MOST, _RECORD, RECORD, Journal
from satrap.rpc.wire.frames import HEADER_BYTES, Header, MessageKind, digest, encode
from tests import faults

Message = tuple[Header, list[bytes]]
MESSAGES: list[Message] = [
    (Header(MessageKind.HELLO, 1, 7, 0), [b"tables"]),
    (Header(MessageKind.UPDATE, 1, 7, 1, 1, 0, 0.5), [b"", b"ids" * 4, b"gradients" * 2]),
    (Header(MessageKind.LOOKUP, 1, 7, 2, 1), [b"more ids" * 2]),
    (Header(MessageKind.FLUSH, 1, 7, 3, 3), []),
]


def write(journal: Journal, messages: list[Message]) -> None:
    for header, parts in messages:
        journal.append(encode(header, digest(parts)), parts)


def read(journal: Journal, step: int | None = None) -> list[Message]:
    found = (message for segment in journal.since(step) for message in journal.read(segment))
    return [(header, [bytes(p) for p in parts]) for header, parts in found]


def open_and_read(folder: Path) -> list[Message]:
    journal = Journal(folder)
    try:
        return read(journal)
    finally:
        journal.close()


def written(folder: Path, messages: list[Message] = MESSAGES) -> Path:
    journal = Journal(folder)
    write(journal, messages)
    journal.close()
    return journal.segments[-1].path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    journal = Journal(tmp_path)
    assert read(journal) == MESSAGES
    assert [(s.records, s.kinds[MessageKind.UPDATE]) for s in journal.segments] == [(4, 1)]
    updates = [header.kind for header, _ in journal.read(journal.segments[0], MessageKind.UPDATE)]
    assert updates == [MessageKind.UPDATE]
    write(journal, MESSAGES[1:3])
    journal.close()
    again = Journal(tmp_path)
    assert read(again) == MESSAGES + MESSAGES[1:3]
    assert again.size == sum(f.stat().st_size for f in tmp_path.glob("*.journal"))
    again.close()


def test_a_journal_torn_at_any_byte_keeps_all_whole_records_and_goes_on(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole").read_bytes()
    ends = [Journal(tmp_path / "none").size]
    for n in range(len(MESSAGES)):
        ends.append(written(tmp_path / str(n), MESSAGES[: n + 1]).stat().st_size)
    for cut in range(len(whole)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "00000000.journal").write_bytes(whole[:cut])
        journal = Journal(folder)
        kept = sum(end <= cut for end in ends[1:])
        assert read(journal) == MESSAGES[:kept]
        write(journal, MESSAGES[kept:])
        journal.close()
        assert (folder / "00000000.journal").read_bytes() == whole


def test_every_changed_byte_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with pytest.raises(CheckpointError) as caught:
            open_and_read(tmp_path)
        assert "00000000.journal" in str(caught.value), at
        path.write_bytes(whole)
    assert read(Journal(tmp_path)) == MESSAGES


@pytest.mark.parametrize(
    ("parts", "length"),
    [(0, HEADER_BYTES - 1), (1, HEADER_BYTES + 7), (3, HEADER_BYTES + 23), (0, _MOST), (1, _MOST)],
)
def test_a_head_with_a_right_checksum_and_impossible_sizes_is_named(
    parts: int, length: int, tmp_path: Path
) -> None:
    """Also at the end of the file, where it could be taken for a torn one."""
    path = written(tmp_path)
    fixed = _RECORD.pack(RECORD, parts, len(MESSAGES), length)
    with path.open("ab") as file:
        file.write(fixed + _CHECK.pack(zlib.crc32(fixed)) + bytes(200))
    with pytest.raises(CheckpointError, match="record 4 is out of order"):
        Journal(tmp_path)


def test_records_in_another_order_are_named(tmp_path: Path) -> None:
    sizes = [written(tmp_path / str(n), MESSAGES[:n]).stat().st_size for n in range(4)]
    path = written(tmp_path / "all")
    data = path.read_bytes()
    a, b, c = sizes[1:4]
    for wrong in (data[:a] + data[b:c] + data[a:b] + data[c:], data[:a] + data[b:], data[:b] + data[a:]):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"record \d is out of order"):
            Journal(tmp_path / "all")


def test_a_new_segment_begins_at_a_cut_and_older_ones_go_when_it_is_committed(tmp_path: Path) -> None:
    state = Header(0), [b"state"]
    journal = Journal(tmp_path)
    write(journal, MESSAGES[:2])
    journal.rotate(100, encode(state[0], digest(state[1])), state[1])
    write(journal, MESSAGES[2:])
    journal.close()
    journal = Journal(tmp_path)
    assert read(journal) == [*MESSAGES[:2], state, *MESSAGES[2:]]
    assert read(journal, 100) == [state, *MESSAGES[2:]]
    journal.forget(100)
    journal.close()
    journal = Journal(tmp_path)
    assert [s.step for s in journal.segments] == [100]
    assert read(journal, 100) == [state, *MESSAGES[2:]]
    with pytest.raises(CheckpointError, match="does not reach back to the start of the run") as caught:
        journal.since(None)
    assert "start from the snapshot of step 100" in str(caught.value)
    with pytest.raises(CheckpointError, match="snapshot of step 50"):
        journal.since(50)
    journal.close()


def test_a_segment_whose_start_was_torn_is_forgotten(tmp_path: Path) -> None:
    state = Header(0), [b"state"]
    journal = Journal(tmp_path)
    write(journal, MESSAGES)
    journal.rotate(100, encode(state[0], digest(state[1])), state[1])
    journal.close()
    path = journal.segments[-1].path
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(tmp_path)
        assert read(again) == MESSAGES
        assert [s.step for s in again.segments] == [None]
        again.close()


def test_a_missing_or_torn_segment_in_the_middle_is_named(tmp_path: Path) -> None:
    state = encode(Header(0), digest([b"x"])), [b"x"]
    journal = Journal(tmp_path)
    write(journal, MESSAGES)
    journal.rotate(1, *state)
    write(journal, MESSAGES[1:])
    journal.rotate(2, *state)
    journal.close()
    paths = [s.path for s in journal.segments]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="the file ends inside a record"):
        Journal(tmp_path)
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"it does not continue 00000000\.journal"):
        Journal(tmp_path)


def test_a_disk_that_fails_is_named_and_the_journal_stays_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, MESSAGES[:2])
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        faults.armed("journal.write", faults.fail(lambda: full)),
        pytest.raises(StoreError, match="the journal cannot be written: No space left on device") as caught,
    ):
        write(journal, MESSAGES[2:])
    assert "so it was not executed" in str(caught.value)
    write(journal, MESSAGES[2:])
    journal.close()
    assert read(Journal(tmp_path)) == MESSAGES


def test_a_record_that_only_partly_fits_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    write(journal, MESSAGES[:2])
    real, calls = os.writev, []

    def short(file: int, data: list[memoryview]) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, [memoryview(b"".join(data))[:20]])

    monkeypatch.setattr(os, "writev", short)
    with pytest.raises(StoreError, match="No space left"):
        write(journal, MESSAGES[2:3])
    monkeypatch.setattr(os, "writev", real)
    write(journal, MESSAGES[2:])
    journal.close()
    assert read(Journal(tmp_path)) == MESSAGES


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    program = (
        "import pathlib, sys; from satrap.rpc.server.journal import Journal;"
        "Journal(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "another process keeps its journal in this folder" in done.stderr
    journal.close()
    Journal(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot open the journal"):
        Journal(tmp_path / "file" / "journal")
