import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.store.tier.file import GROWTH, RecordFile


def records(count, size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def test_records_come_back_as_written(tmp_path):
    file, expected = RecordFile(str(tmp_path), 44, 5000), records(5000, 44)
    order = np.random.default_rng(1).permutation(5000).astype(np.int32)
    order[1000:3000] = np.sort(order[1000:3000])  # with neighbours among them
    file.reserve(5000)
    for part in np.array_split(order, 7):
        file.write(part, np.ascontiguousarray(expected[part]))
    again = np.random.default_rng(2).integers(0, 5000, 9000).astype(np.int32)
    file.prefetch(np.sort(again))
    np.testing.assert_array_equal(file.read(again), expected[again])
    file.forget_pages()
    np.testing.assert_array_equal(file.read(np.arange(5000, dtype=np.int32)), expected)
    file.close()


@pytest.mark.parametrize(("slow", "together"), [(0.0, True), (1.0, False)])
def test_a_slow_disk_is_asked_for_many_records_at_a_time(tmp_path, monkeypatch, slow, together):
    monkeypatch.setattr("satrap.store.tier.file.SLOW", slow)
    file, expected, asked = RecordFile(str(tmp_path), 44, 500), records(500, 44), []
    file.reserve(500)
    file.write(np.arange(500, dtype=np.int32), expected)
    file.forget_pages()
    prefetch = file.prefetch
    monkeypatch.setattr(file, "prefetch", lambda slots: asked.append(slots) or prefetch(slots))
    order = np.random.default_rng(1).permutation(500).astype(np.int32)
    np.testing.assert_array_equal(file.read(order), expected[order])
    assert [a.tolist() for a in asked] == ([order[32:].tolist()] if together else [])
    np.testing.assert_array_equal(file.read(order[:3]), expected[order[:3]])
    assert len(asked) == together
    file.close()


def test_disk_space_is_taken_in_large_steps_up_to_the_limit(tmp_path):
    file = RecordFile(str(tmp_path), 1000, 20_000)
    file.reserve(1)
    assert file.bytes == GROWTH
    file.reserve(100_000)
    assert file.bytes == 20_000_000
    file.clear()
    assert file.bytes == 0
    file.close()


def test_a_full_disk_is_an_error_that_changes_nothing(tmp_path):
    file, limits = RecordFile(str(tmp_path), 1000, 50_000), resource.getrlimit(resource.RLIMIT_FSIZE)
    file.reserve(10)
    file.write(np.arange(10, dtype=np.int32), records(10, 1000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GROWTH + 1000, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot grow"):
            file.reserve(20_000)
        file.reserve(GROWTH // 1000 + 1)  # what fits exactly is taken
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert GROWTH < file.bytes <= GROWTH + 1000
    np.testing.assert_array_equal(file.read(np.arange(10, dtype=np.int32)), records(10, 1000))
    file.close()


def test_after_a_failed_write_nothing_is_read_until_it_is_cleared(tmp_path):
    file, slots = RecordFile(str(tmp_path), 8, 100), np.arange(10, dtype=np.int32)
    file.reserve(10)
    file.write(slots, records(10, 8))
    fd = file._file.fileno()
    kept, broken = os.dup(fd), os.open(os.devnull, os.O_RDONLY)
    os.dup2(broken, fd)
    with pytest.raises(StoreError, match="cannot write"):
        file.write(slots, records(10, 8))
    with pytest.raises(StoreError, match="cannot write"):
        file.read(slots)
    os.dup2(kept, fd)
    with pytest.raises(StoreError, match="cannot write"):
        file.read(slots)
    file.clear()
    file.reserve(10)
    file.write(slots, records(10, 8, 3))
    np.testing.assert_array_equal(file.read(slots), records(10, 8, 3))
    file.close()
    os.close(kept)
    os.close(broken)


def test_what_cannot_be_read_is_an_error(tmp_path):
    file = RecordFile(str(tmp_path), 8, 100)
    with pytest.raises(StoreError, match="cannot read"):
        file.read(np.arange(10, dtype=np.int32))
    file.close()


def test_a_killed_process_leaves_nothing(tmp_path):
    code = (
        "import sys, time\n"
        "from satrap.store.tier.file import RecordFile\n"
        "file = RecordFile(sys.argv[1], 1000, 5000)\n"
        "file.reserve(5000)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert os.listdir(tmp_path) == []
