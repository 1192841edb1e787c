import subprocess
import sys
import threading
import time

import pytest

from satrap.data import prefetch
from satrap.errors import DataError


def threads():
    return [t for t in threading.enumerate() if t.name == "satrap-prefetch"]


def test_same_items_and_no_thread_left():
    assert list(prefetch(range(1000))) == list(range(1000))
    assert not threads()


def test_errors_come_after_the_items_before_them():
    def items():
        yield 1
        raise DataError("bad row")

    source = prefetch(items())
    assert next(source) == 1
    with pytest.raises(DataError, match="bad row"):
        next(source)
    assert list(source) == []
    assert not threads()


@pytest.mark.parametrize(
    ("options", "depth"), [({"depth": 3}, 3), ({}, 2), ({"depth": 1}, 1), ({"depth": 0}, 1)]
)
def test_it_runs_ahead_but_no_further_than_depth(options, depth):
    seen = []

    def items():
        for i in range(100):
            seen.append(i)
            yield i

    with prefetch(items(), **options) as source:
        deadline = time.monotonic() + 5
        while len(seen) < depth + 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert seen == list(range(depth + 1))
        assert source.ready == depth
        assert next(source) == 0
    assert not threads()


def test_an_item_that_takes_too_long_is_none_and_comes_later():
    go = threading.Event()

    def items():
        go.wait(20)
        yield 7

    with prefetch(items()) as source:
        assert source.take(0.01) is None
        go.set()
        assert source.take(20) == 7
        with pytest.raises(StopIteration):
            source.take(20)
        with pytest.raises(StopIteration):
            source.take(20)


def test_close_ends_the_source_where_it_stands():
    closed = []

    def items():
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    source = prefetch(items())
    next(source)
    source.close()
    source.close()
    assert closed == ["satrap-prefetch"]
    assert list(source) == []
    assert not threads()


def test_an_abandoned_prefetch_ends_by_itself():
    source = prefetch(iter(int, 1))
    next(source)
    (thread,) = threads()
    del source
    thread.join(5)
    assert not thread.is_alive()


READING = """
import time, pyarrow.csv
from satrap.data.prefetch import prefetch

text = b"a,b\\n" + b"1,xyz\\n" * 5000

def tables():
    yield
    while True:
        yield pyarrow.csv.read_csv(pyarrow.BufferReader(text), pyarrow.csv.ReadOptions(use_threads=False))

reading = prefetch(tables(), depth=10**9)
next(reading)
time.sleep(0.05)
"""


@pytest.mark.cluster
def test_a_process_that_ends_while_it_reads_ends_in_order():
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", READING], capture_output=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
