import gzip
import io

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest

from satrap import Categorical, Label, Numeric, Schema
from satrap.data import CsvOptions, hash_ids, read
from satrap.data.formats.csv import CsvSource
from satrap.data.formats.files import find_files
from satrap.data.source import Scan
from satrap.errors import ConfigError
from tests.data.helpers_data import Counted, click_schema, error_of, ids_schema, numbers

A = Schema([], {"a": Categorical(dim=4), "x": Numeric()})


def put(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    raw = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def all_rows(dataset):
    batches = list(dataset)
    ids = np.concatenate([b.ids["a"].values for b in batches])
    return ids, np.concatenate([b.numeric[:, 0] for b in batches])


@pytest.mark.filterwarnings("ignore:.*spans several lines")
@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz", "d.tsv", "d.tsv.gz"])
def test_equals_pandas(tmp_path, name):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "unused": ['say "hi", you\nthere'] * 3000,
            "a": rng.choice(["007", "7", "x,y", 'q"q', "", "é", "line\nend"], 3000),
            "x": np.where(rng.random(3000) < 0.1, np.nan, rng.normal(size=3000)),
        }
    )
    path = put(tmp_path, frame.to_csv(index=False, sep="\t" if "tsv" in name else ","), name)
    ids, x = all_rows(read(path, A, batch_size=700))
    assert np.array_equal(ids, hash_ids(frame["a"]))
    np.testing.assert_array_equal(x, frame["x"].fillna(0).astype(np.float32))


def test_text_of_categories_stays_text(tmp_path):
    path = put(tmp_path, "a,x\n007,1\n7,2\n7.0,3\n")
    ids, _ = all_rows(read(path, A))
    assert np.array_equal(ids, hash_ids(["007", "7", "7"]))
    assert len(set(ids.tolist())) == 2


def test_truth_values_as_numbers_cost_no_copy_of_the_table_per_column(tmp_path, monkeypatch):
    parse, copied, names = pyarrow.csv.read_csv, [], [f"c{i}" for i in range(60)]
    monkeypatch.setattr(pyarrow.csv, "read_csv", lambda *a: Counted(parse(*a), copied))
    rows = [[n * i % 7 for i in range(60)] for n in range(4)]
    lines = [",".join([*names, "y"]), *(",".join(map(str, [*row, n > 1])) for n, row in enumerate(rows))]
    schema = Schema(["y"], {name: Numeric() for name in names})
    (batch,) = read(put(tmp_path, "\n".join(lines)), schema)
    assert batch.numeric.tolist() == rows
    assert batch.labels[:, 0].tolist() == [0, 0, 1, 1]
    assert sum(copied) <= 2 * 61


def test_the_adult_way_of_writing(tmp_path):
    path = put(tmp_path, "|1x3 Cross validator\n 25,  Private\r\n?, ? \n\n38, Self emp\n\n", "adult.test")
    options = CsvOptions(columns=("x", "a"), comment="|", strip=True)
    ids, x = all_rows(read(path, A, csv=options))
    assert x.tolist() == [25, 0, 38]
    assert np.array_equal(ids, hash_ids(["Private", "", "Self emp"]))


def test_missing_texts_can_be_chosen(tmp_path):
    path = put(tmp_path, "a,x\nNA,-\n-,1\n")
    ids, x = all_rows(read(path, A, csv=CsvOptions(missing=("", "-"))))
    assert np.array_equal(ids, hash_ids(["NA", ""]))
    assert x.tolist() == [0, 1]


def test_other_separator_quote_and_encoding(tmp_path):
    path = put(tmp_path, 'a;x\n"ä;1\n'.encode("latin-1"))
    ids, _ = all_rows(read(path, A, csv=CsvOptions(separator=";", quote=None, encoding="latin-1")))
    assert np.array_equal(ids, hash_ids(['"ä']))


TITLES = 'a\tx\n"So" it\t1\n"Un\t2\nplain\t3\n"5 in" or"\t4\n'


def test_texts_that_begin_with_a_quote_keep_their_rows_without_quotes(tmp_path):
    path = put(tmp_path, TITLES, "titles.tsv")
    for none in (None, ""):
        ids, x = all_rows(read(path, A, csv=CsvOptions(quote=none)))
        assert x.tolist() == [1, 2, 3, 4]
        assert np.array_equal(ids, hash_ids(['"So" it', '"Un', "plain", '"5 in" or"']))
    error = error_of(lambda: list(read(path, A)))
    assert "row 2" in error.where
    assert "data.quote: null" in error.fix


def test_lines_inside_quotes_are_told_once(tmp_path, recwarn):
    text = 'a,x\np,1\n"q\nr\n""s""",2\nt,3\n"u\nv",4'
    paths = [put(tmp_path, text, f"{i}.csv") for i in range(2)]
    with pytest.warns(RuntimeWarning, match="spans several lines") as told:
        ids, x = all_rows(read(paths, A))
    assert len(told) == 1
    assert f"{paths[0]}, row 2: " in str(told[0].message)
    assert "7 lines become 4 rows" in str(told[0].message)
    assert x.tolist() == [1, 2, 3, 4] * 2
    assert np.array_equal(ids[:4], hash_ids(["p", 'q\nr\n"s"', "t", "u\nv"]))
    dataset = read(paths, A)
    list(dataset.with_options(worker=1, workers=2))  # all workers read all lines: the first one tells
    assert not recwarn.list


def test_columns_may_come_in_another_order_in_each_file(tmp_path):
    paths = [put(tmp_path, "a,x\np,1\n", "1.csv"), put(tmp_path, "x,z,a\n2,0,q\n", "2.csv")]
    ids, x = all_rows(read(paths, A))
    assert x.tolist() == [1, 2]
    assert np.array_equal(ids, hash_ids(["p", "q"]))


@pytest.mark.parametrize("blocks", [1 << 20, 1 << 12])
def test_many_blocks(tmp_path, monkeypatch, blocks):
    monkeypatch.setattr("satrap.data.formats.csv.BLOCK_BYTES", blocks)
    path = put(tmp_path, "x\n" + "".join(f"{i}\n" for i in range(50_000)), "n.csv.gz")
    schema = Schema([], {"x": Numeric()})
    assert np.array_equal(numbers(read(path, schema)), np.arange(50_000, dtype=np.float32))
    assert read(path, schema).num_rows() is None


def test_both_as_text_and_as_number(tmp_path):
    path = put(tmp_path, "year\n 1999\n2001\n")
    schema = Schema(
        [Label(name="late", column="year", threshold=2000)],
        {"year": Categorical(dim=2), "y": Numeric(column="year")},
    )
    (batch,) = read(path, schema)
    assert batch.labels[:, 0].tolist() == [0, 1]
    assert batch.numeric[:, 0].tolist() == [1999, 2001]
    assert np.array_equal(batch.ids["year"].values, hash_ids([" 1999", "2001"]))


ERRORS = {
    "user,clicked,price\nu,0,1\nu,1,x1\n": ("'x1' is not a number", "row 2, column 'price'"),
    "user,clicked,price\nu,2,1\n": ("value 2 is neither 0 nor 1", "row 1, column 'clicked'"),
    "user,clicked,price\nu,,1\n": ("a label is missing", "row 1, column 'clicked'"),
    "user,clicked,price\nu,1,inf\n": ("value inf is infinite", "row 1, column 'price'"),
    "user,clicked,price\nu,1,1e300\n": ("too large for float32", "row 1, column 'price'"),
    "user,clicked,price\nu,1,2\n\nu,1\n": ("a row has 2 values, the header has 3", "row 2: u,1"),
    "user,click,price\nu,1,2\n": ("column 'clicked' is missing", "data.csv"),
    "user,clicked,price,user\nu,1,2,3\n": ("2 columns have the name 'user'", "data.csv"),
    "user,clicked,price\n": ("no rows: the data is empty", "data.csv"),
    "": ("the file is empty", "data.csv"),
    b"user,clicked,price\nu,0,1\n\xe4,0,1\n": ("the text is not UTF-8", "row 2, column 'user'"),
    b"us\xe4r,clicked,price\n": ("the text is not UTF-8", "data.csv, header line"),
    "user,clicked,price\nu\rv,0,1\n": ("", "row"),
    'user,clicked,price\n"u,0,1\n': ("a quote opens and never closes", "row 1"),
    'user,clicked,price\nu,0,1\n"u,0,1\n"v,0,1\n': ("a quote opens, closes on a later line", "row 2"),
}


@pytest.mark.parametrize("text", ERRORS, ids=lambda t: repr(t)[:40])
def test_errors_name_file_row_and_column(tmp_path, text):
    what, where = ERRORS[text]
    path = put(tmp_path, text)
    error = error_of(lambda: list(read(path, click_schema())))
    assert what in error.what
    assert where in error.where
    assert path in error.where
    if what:
        assert error.fix


def test_row_number_of_an_error_with_a_row_split_and_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("satrap.data.formats.csv.BLOCK_BYTES", 512)
    lines = [f"{i}" for i in range(5000)]
    lines[3209] = "bad"
    path = put(tmp_path, "x\n" + "\n".join(lines))
    from satrap.data import RowSplit

    dataset = read(path, Schema([], {"x": Numeric()}), rows=RowSplit(10, (9,)))
    assert "row 3210," in error_of(lambda: list(dataset)).where
    lines[3209] = "1,2"
    put(tmp_path, "x\n" + "\n".join(lines))
    assert "row 3210:" in error_of(lambda: list(dataset)).where


def test_options_are_checked():
    for bad in ({"separator": "||"}, {"quote": "ä"}, {"encoding": "utf-99"}):
        with pytest.raises(ConfigError):
            CsvOptions(**bad)


def test_gzip_cut_short(tmp_path):
    raw = gzip.compress(("a\n" + "x\n" * 500_000).encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(raw[: len(raw) // 2])
    assert "truncated" in error_of(lambda: list(read(str(path), ids_schema()))).what


def test_progress(tmp_path):
    path = put(tmp_path, "x\n" + "".join(f"{i}\n" for i in range(400_000)))
    dataset = read(path, Schema([], {"x": Numeric()}), batch_size=50_000)
    shares = [dataset.progress(b.position) for b in dataset]
    assert shares == sorted(shares)
    assert 0.4 < shares[-1] <= 1


def test_progress_is_the_share_of_the_bytes(tmp_path):
    first, second = "x\n1\n22\n", "x\n333\n"
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, text in zip(paths, (first, second), strict=True):
        path.write_text(text)
    source = CsvSource(find_files([str(path) for path in paths]), CsvOptions())
    scan = Scan(ids=[], numbers=["x"])
    found = [source.progress(scan, cursor) for cursor in ([0, -1], [0, 4], [1, -1], [1, 2], [2, -1], [1, 99])]
    assert found == [0.0, 4 / 13, 7 / 13, 9 / 13, 1.0, 1.0]
    assert source.num_rows(scan) is None
    single = source.single(1)
    assert (single.files, single.names, list(single.cursors(None))) == (1, ["x"], [[0, 2, 0, 0, 0]])
    assert list(single.cursors([0, 2, 5, 0, 5])) == [[0, 2, 5, 0, 5]]
    assert single.offset([0, 2, 0, 0, 0]) == 2
    path = tmp_path / "c.csv.gz"
    path.write_bytes(gzip.compress(b"x\n1\n"))
    zipped = CsvSource(find_files(str(path)), CsvOptions())
    assert (zipped.progress(scan, [0, 2]), zipped.cursors(None)) == (None, None)


def test_original_columns_are_verbatim(tmp_path):
    text = "z,a,x\n 1,?,1.50\n,007,?\n"
    path = put(tmp_path, text)
    ((table, batch),) = read(path, A).tables_and_batches()
    out = io.StringIO()
    table.to_pandas().to_csv(out, index=False)
    assert out.getvalue() == text
    assert np.array_equal(batch.ids["a"].values, hash_ids(["", "007"]))
    assert batch.numeric[:, 0].tolist() == [1.5, 0]
