import itertools

import pytest

from satrap.data import CsvOptions
from satrap.data.dataset import open_source
from satrap.data.formats.csv import BLOCK_BYTES
from satrap.tools.prepare.parts import OutputPart, PartRun, after, runs

LIMIT = 2 * BLOCK_BYTES
LINE = b"word," * 20 + b"\n"
ROWS = 120_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "a.csv"
    path.write_bytes(LINE * ROWS)
    return open_source(str(path), csv=CsvOptions(columns=[str(i) for i in range(21)]))


def part(run, stop):
    return OutputPart("train", 0, run.number, run.start, stop, 1, 1, 1)


def all_runs(source, done, *, split):
    return list(runs(source, "train", 0, done, LIMIT, split=split))


def test_a_part_has_at_least_the_limit_and_less_than_a_block_more(source):
    found = all_runs(source, {}, split=True)
    assert [run.number for run in found] == list(range(len(found)))
    assert [run.start for run in found] == [None, *(run.stop for run in found[:-1])]
    offsets = [0, *(source.offset(run.stop) for run in found[:-1])]
    lengths = [after - before for before, after in itertools.pairwise(offsets)]
    assert all(LIMIT <= length < LIMIT + BLOCK_BYTES for length in lengths)
    assert all(offset % len(LINE) == 0 for offset in offsets)
    assert found[-1].stop is None
    assert offsets[-1] < len(LINE) * ROWS


def test_what_is_done_is_left_out_wherever_it_is(source):
    found = all_runs(source, {}, split=True)
    for gone in ([0], [1], [0, 2], [len(found) - 1], range(len(found))):
        done = {i: part(found[i], found[i].stop) for i in gone}
        assert all_runs(source, done, split=True) == [run for i, run in enumerate(found) if i not in gone]


def test_without_a_split_a_run_reaches_to_the_next_part_that_is_done(source):
    found = all_runs(source, {}, split=True)
    assert all_runs(source, {}, split=False) == [PartRun("train", 0, 0, None, None)]
    done = {1: part(found[1], found[1].stop)}
    assert all_runs(source, done, split=False) == [
        PartRun("train", 0, 0, None, found[1].start),
        PartRun("train", 0, 2, found[2].start, None),
    ]
    done[len(found) - 1] = part(found[-1], None)
    assert all_runs(source, done, split=False)[-1].stop == found[-1].start


def test_compressed_text_is_one_run(tmp_path):
    import gzip

    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(LINE * ROWS))
    gz = open_source(str(path), csv=CsvOptions(columns=[str(i) for i in range(21)]))
    assert all_runs(gz, {}, split=True) == [PartRun("train", 0, 0, None, None)]


def test_what_is_left_of_a_run_is_the_run_without_its_first_part(source):
    found = all_runs(source, {}, split=True)
    assert len(found) >= 3
    left = PartRun("train", 0, 0, None, None)
    for run in found[:-1]:
        left = after(left, part(run, run.stop))
        assert left == PartRun("train", 0, run.number + 1, run.stop, None)
    assert after(left, part(found[-1], None)) is None
    assert after(found[1], part(found[1], found[1].stop)) is None
