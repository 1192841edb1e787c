import csv
import gzip
import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.formats.csv_records import blocks, copy_records, find_records
from satrap.data.formats.files import find_files
from satrap.data.formats.text_stream import TextStream
from tests.data.helpers_data import error_of
from tests.support.examples import examples

COMMENT = np.frombuffer(b"#", np.uint8)
NOTHING = np.empty(0, np.uint8)
cells = st.text('ab",\n 1', max_size=6)


def write(rows, end="\n"):
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerows(rows)
    return out.getvalue().encode()


@given(
    st.lists(st.lists(cells, min_size=2, max_size=2), max_size=20),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_records_are_the_rows_of_the_csv_module(rows, end, last_line_end):
    text = write(rows, end)
    text = text if last_line_end else text.removesuffix(end.encode())
    data = np.frombuffer(text, np.uint8)
    starts, ends, _, _, quoted = find_records(data, 34, 44, NOTHING, final=True)
    assert not quoted
    assert len(starts) == len(rows)
    found = [
        next(csv.reader([text[s:e].decode()], lineterminator=end))
        for s, e in zip(starts, ends, strict=True)
        if b"\n" not in text[s:e]
    ]
    assert found == [r for r in rows if not any("\n" in c for c in r)]


def test_blank_lines_and_comments_are_no_records():
    text = b"# it's, \"open\n\n1,2\r\n\r\n#x\n3,4"
    data = np.frombuffer(text, np.uint8)
    starts, ends, lines, consumed, _ = find_records(data, 34, 44, COMMENT, final=True)
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == [b"1,2", b"3,4"]
    assert (lines, consumed) == (6, len(text))
    assert len(find_records(data, 34, 44, COMMENT, final=False)[0]) == 1


def test_a_quote_in_a_comment_opens_nothing():
    text = b'1,2\n# a,"open\n3,4\n'
    data = np.frombuffer(text, np.uint8)
    starts, ends, _, _, quoted = find_records(data, 34, 44, COMMENT, final=True)
    assert not quoted
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == [b"1,2", b"3,4"]


def test_quote_inside_a_field_is_an_ordinary_character():
    data = np.frombuffer(b'5" pipe,1\n6" pipe,2\n', np.uint8)
    assert len(find_records(data, 34, 44, NOTHING, final=True)[0]) == 2


def test_copy_strips_blanks_around_values_only():
    text = b' a b , "x , y" ,c\t\n  ?,,  \n'
    data = np.frombuffer(text, np.uint8)
    starts, ends, *_ = find_records(data, 34, 44, NOTHING, final=True)
    assert copy_records(data, starts, ends, (34, 44)).tobytes() == b'a b,"x , y",c\n?,,\n'
    assert copy_records(data, starts[1:], ends[1:], None).tobytes() == b"  ?,,  \n"


@given(
    st.lists(st.lists(cells, min_size=2, max_size=2), min_size=1, max_size=20),
    st.integers(1, 50),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_block_size_does_not_matter_and_any_block_is_a_place_to_go_on(tmp_path_factory, rows, size, zipped):
    folder = tmp_path_factory.mktemp("blocks")
    path = folder / ("a.csv.gz" if zipped else "a.csv")
    path.write_bytes(gzip.compress(write(rows)) if zipped else write(rows))
    (file,) = find_files(str(path))

    def records(offset, row):
        with TextStream(file, "utf-8") as stream:
            stream.skip_to(offset)
            found = list(blocks(stream, 34, 44, NOTHING, row=row, size=size))
        return found, [bytes(b.data[s:e]) for b in found for s, e in zip(b.starts, b.ends, strict=True)]

    found, everything = records(0, 0)
    assert len(everything) == len(rows)
    for block in found:
        assert records(block.offset, block.row)[1] == everything[block.row :]


def test_open_quote_is_named_with_its_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"3,4\n5,6\n')
    (file,) = find_files(str(path))

    def run():
        with TextStream(file, "utf-8") as stream:
            list(blocks(stream, 34, 44, NOTHING, row=0, size=100))

    assert "row 3" in error_of(run).where


def test_a_row_that_never_ends_is_refused(tmp_path, monkeypatch):
    """Blocks grow from 16 bytes to 128."""
    monkeypatch.setattr("satrap.data.formats.csv_records._MAX_RECORD", 64)
    path = tmp_path / "a.csv"

    def records(length):
        path.write_text("1\n" + "x" * length + "\n2\n")
        (file,) = find_files(str(path))
        with TextStream(file, "utf-8") as stream:
            found = list(blocks(stream, 34, 44, NOTHING, row=7, size=16))
        return [(block.row, block.offset, len(block.starts)) for block in found]

    assert records(127) == [(7, 0, 1), (8, 2, 1), (9, 130, 1)]
    error = error_of(lambda: records(128))
    assert error.what == "a row is longer than 64 MiB"
    assert error.where.endswith("a.csv, row 9")
