import gzip

import pytest

from satrap.data.formats.files import find_files
from satrap.data.formats.text_stream import TextStream
from tests.data.helpers_data import error_of

TEXT = "name,größe\nä,1\n" * 5000


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("zipped", [False, True])
def test_any_encoding_reads_as_utf8(tmp_path, encoding, zipped):
    path = tmp_path / ("a.csv.gz" if zipped else "a.csv")
    raw = TEXT.encode(encoding)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    (file,) = find_files(str(path))
    with TextStream(file, encoding) as stream:
        start = stream.offset
        first = stream.read(1001)
        middle = stream.offset
        rest = stream.read(10**7)
        assert stream.read(10) == b""
    assert (first + rest).decode() == TEXT
    assert middle == start + len(first)
    with TextStream(file, encoding) as stream:
        stream.skip_to(middle)
        assert stream.read(10**7) == rest


def test_gzip_is_known_by_its_first_bytes_too(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"x\n1\n"))
    with TextStream(find_files(str(path))[0], "utf-8") as stream:
        assert stream.read(100) == b"x\n1\n"


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_gzip_is_one_clear_error(tmp_path, damage):
    raw = bytearray(gzip.compress(TEXT.encode(), mtime=0))
    if damage == "flip":
        raw[len(raw) // 2] ^= 0xFF
    path = tmp_path / "a.csv.gz"
    path.write_bytes({"cut": raw[:-20], "flip": raw}[damage])

    def run():
        with TextStream(find_files(str(path))[0], "utf-8") as stream:
            while stream.read(1000):
                pass

    error = error_of(run)
    assert "gzip file is damaged" in error.what
    assert error.where.endswith("a.csv.gz")


def test_plain_text_with_the_name_of_a_gzip_file(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(b"x\n1\n")
    error = error_of(lambda: TextStream(find_files(str(path))[0], "utf-8"))
    assert "not compressed" in error.what
    assert error.where.endswith("a.csv.gz")


def test_wrong_encoding(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("ab,ä".encode("latin-1"))

    def run():
        with TextStream(find_files(str(path))[0], "utf-16") as stream:
            stream.read(100)

    path.write_bytes(b"\x00\xd8\x00\x00")
    assert "not valid utf-16" in error_of(run).what


def test_shorter_file_than_saved(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"x\n1\n"))

    def run():
        with TextStream(find_files(str(path))[0], "utf-8") as stream:
            stream.skip_to(1000)

    assert "shorter" in error_of(run).what


def converted(path, encoding):
    with TextStream(find_files(path)[0], encoding) as stream:
        return stream.read(1 << 24)


@pytest.mark.parametrize(
    ("encoding", "content", "byte"),
    [
        ("utf-16", b"a,b\n1,2\n", 1),
        ("utf-32", b"a,b\n1,2\n" * 3, 1),
        ("utf-16", "a,b\n".encode("utf-16") + b"\x00\xd8" + b"x\x00", 11),
        ("utf-16", "abc".encode("utf-16") + b"x", 9),
        ("shift_jis", b"a" * 3_000_000 + b"\xfd\n", 3_000_001),
        ("cp1252", b"abcdef\x81", 7),
    ],
)
def test_text_that_is_not_in_its_encoding_is_named_with_its_byte(tmp_path, encoding, content, byte):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    error = error_of(lambda: converted(path, encoding))
    assert f"a.csv, byte {byte:,}" in error.where
    assert encoding in error.what


def test_characters_that_lie_across_reads(tmp_path):
    path, text = tmp_path / "a.csv", "äöü€" * 600_000
    for encoding in ("utf-16", "cp1252", "utf-16-be"):
        path.write_bytes(text.encode(encoding))
        assert converted(path, encoding).decode() == text
