import fsspec
import pytest

from satrap.data.files import find_files, guess_format
from satrap.errors import ConfigError
from tests.data.helpers_data import error_of


def test_globs_are_sorted_and_lists_keep_their_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("x\n1\n")
    names = [f.name.rpartition("/")[2] for f in find_files(str(tmp_path / "*.csv"))]
    assert names == ["a.csv", "b.csv"]
    files = find_files([tmp_path / "c.txt", str(tmp_path / "*.csv")])
    assert [f.name.rpartition("/")[2] for f in files] == ["c.txt", "a.csv", "b.csv"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path):
    (tmp_path / "a[1].csv").write_text("x\n1\n")
    assert len(find_files(str(tmp_path / "a[1].csv"))) == 1


def test_relative_paths_stay_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert find_files("a.csv")[0].name == "a.csv"


def test_urls():
    system = fsspec.filesystem("memory")
    system.pipe("/files-test/b.csv", b"x\n1\n")
    system.pipe("/files-test/a.csv", b"x\n1\n")
    files = find_files("memory://files-test/*.csv")
    assert [f.name for f in files] == ["memory:///files-test/a.csv", "memory:///files-test/b.csv"]
    with files[0].open() as handle:
        assert handle.read() == b"x\n1\n"


def test_missing_files_name_the_nearest(tmp_path):
    (tmp_path / "train.csv").write_text("x\n")
    error = error_of(lambda: find_files(str(tmp_path / "trian.csv")))
    assert error.what == "the file does not exist; did you mean 'train.csv'?"
    assert error.where.endswith("trian.csv")
    assert error_of(lambda: find_files(str(tmp_path / "*.parquet"))).what.startswith("no file matches")
    assert "folder" in error_of(lambda: find_files(str(tmp_path))).what
    assert "empty" in error_of(lambda: find_files([])).what


def test_impossible_sources():
    with pytest.raises(ConfigError, match="type int"):
        find_files(7)
    with pytest.raises(ConfigError, match="no path or known URL"):
        find_files("nosuchprotocol://x/y.csv")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "csv"),
        ("a.CSV.gz", "csv"),
        ("a.tsv.gz", "tsv"),
        ("x.parquet", "parquet"),
        ("x.feather", "arrow"),
    ],
)
def test_formats(name, kind):
    assert guess_format(name) == kind


def test_unknown_format():
    with pytest.raises(ConfigError, match="give format"):
        guess_format("a.xlsx")
