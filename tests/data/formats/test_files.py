import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Schema
from satrap.data import read
from satrap.data.formats.files import find_files, guess_format
from satrap.errors import ConfigError, DataError
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
    assert error.what == "the file does not exist"
    assert error.fix.startswith("did you mean 'train.csv'? check the path")
    assert error.where.endswith("trian.csv")
    assert error_of(lambda: find_files(str(tmp_path / "*.parquet"))).what.startswith("no file matches")
    error = error_of(lambda: find_files(str(tmp_path / "none" / "x.csv")))
    assert error.what == "the file does not exist"
    assert error.fix.startswith("check the path")
    assert "folder" in error_of(lambda: find_files(str(tmp_path))).what
    assert "empty" in error_of(lambda: find_files([])).what


@pytest.mark.parametrize("pattern", ["rows.csv", "*.csv"])
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path, pattern):
    os.mkfifo(tmp_path / "rows.csv")
    assert "a pipe or a device" in error_of(lambda: find_files(str(tmp_path / pattern))).what
    assert "a pipe or a device" in error_of(lambda: find_files("/dev/zero")).what


def test_impossible_sources():
    with pytest.raises(ConfigError, match="type int"):
        find_files(7)
    with pytest.raises(ConfigError, match="not a path or a supported URL"):
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
    with pytest.raises(ConfigError, match="set format"):
        guess_format("a.xlsx")


HOSTILE = {
    "a carriage return in the header.csv": b"user,\ritem,y\na,b,0\n",
    "a short row that is no text.csv": b"user,item,y\n\xff,0\n",
    "a long row that is no text.csv": b"user,item,y\na,b,0\n\xff,a,b,0\n",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow's, of such rows
@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_are_no_table_are_an_error(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name])
    schema = Schema(["y"], {"user": Categorical(dim=4)})
    with pytest.raises(DataError) as caught:
        list(read(str(tmp_path / name), schema, batch_size=2).batches())
    assert name in caught.value.where


def test_a_column_whose_name_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"marked": ["a"], "y": [0]}), path)
    path.write_bytes(path.read_bytes().replace(b"marked", b"mar\xffed"))
    with pytest.raises(DataError, match="not a readable Parquet"):
        list(read(str(path), Schema(["y"], {"user": Categorical(dim=4)}), batch_size=2).batches())


def test_the_version_changes_with_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1")
    [file] = find_files(str(path))
    before = file.version()
    assert file.version() == before
    os.utime(path, ns=(1, 1))
    assert file.version() == "1" != before


def test_the_version_of_a_url_changes_with_its_content():
    store = fsspec.filesystem("memory")
    versions = []
    for text in (b"1", b"2"):
        store.pipe("/version-test/a.csv", text)
        [file] = find_files("memory://version-test/a.csv")
        versions.append(file.version())
    assert "" != versions[0] != versions[1]
    store.rm("/version-test", recursive=True)


def test_brackets_of_a_folder_that_is_there_are_no_pattern(tmp_path):
    for folder in ("run[1]", "run1", "run2"):
        (tmp_path / folder / "part[a]").mkdir(parents=True)
        for name in ("x.csv", "part[a]/x1.csv", "part[a]/x2.csv"):
            (tmp_path / folder / name).write_text("a\n1\n")

    def found(glob):
        return [str(file.path)[len(str(tmp_path)) + 1 :] for file in find_files(str(tmp_path / glob))]

    assert found("run[1]/*.csv") == ["run[1]/x.csv"]
    assert found("run[1]/part[a]/x[2].csv") == ["run[1]/part[a]/x2.csv"]
    assert found("run[12]/x.csv") == ["run1/x.csv", "run2/x.csv"]
