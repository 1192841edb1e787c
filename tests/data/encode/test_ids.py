import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import satrap
from satrap import Categorical, Numeric, Schema
from satrap.data import hash_ids
from satrap.data.encode.ids import IdType, id_array
from tests.data.helpers_data import error_of, ids_schema, same

VALUES = pa.array(["a", "7", None, "2024-01-31", "NA"])
MISSING = hash_ids(["NA"], 3)


@pytest.fixture
def ids():
    return hash_ids(VALUES, 3, MISSING)


def test_ids_are_not_hashed_again(ids):
    assert (hash_ids(id_array(ids, 3), 3) == ids).all()
    assert ids[2] == ids[4] == 0
    assert id_array(ids, 3).null_count == 2


def test_other_programs_read_plain_numbers(tmp_path, ids):
    pq.write_table(pa.table({"a": id_array(ids, 3)}), tmp_path / "a.parquet")
    field = pq.ParquetFile(tmp_path / "a.parquet").schema.column(0)
    assert (field.physical_type, str(field.logical_type)) == ("INT64", "Int(bitWidth=64, isSigned=false)")
    stored = pq.read_table(tmp_path / "a.parquet").column("a").combine_chunks().storage
    assert stored.to_pylist() == [int(i) or None for i in ids]


def test_files_keep_the_type_and_the_salt(tmp_path, ids):
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 5], pa.int32()), id_array(ids, 3))
    pq.write_table(pa.table({"a": id_array(ids[:3], 3), "b": lists}), tmp_path / "a.parquet")
    read = pq.read_table(tmp_path / "a.parquet").schema
    for kind in (read.field("a").type, read.field("b").type.value_type):
        assert isinstance(kind, IdType)
        assert kind.salt == 3


@pytest.mark.parametrize("multi", [False, True])
def test_a_column_of_ids_is_read_as_its_values_are(ids, multi):
    schema = Schema([], {"a": Categorical(dim=4, multi=multi)}, salt=3)
    [one] = satrap.data.read({"a": VALUES}, schema).batches()
    [other] = satrap.data.read({"a": id_array(ids, 3)}, schema).batches()
    assert same(one, other)


def test_more_values_may_be_missing(ids):
    dataset = satrap.data.read({"a": id_array(ids, 3)}, Schema([], {"a": Categorical(dim=4)}, salt=3))
    [batch] = dataset.with_options(missing=("a",)).batches()
    assert (batch.ids["a"].values == np.where(np.arange(5) == 0, 0, ids)).all()


def test_another_salt_is_refused(ids):
    error = error_of(lambda: list(satrap.data.read({"a": id_array(ids, 3)}, ids_schema())))
    assert "salt 3" in error.what
    assert "salt 0" in error.what
    assert error.fix == "set salt: 3, or run satrap prepare again"


def test_ids_are_no_numbers(ids):
    schema = Schema([], {"a": Numeric()}, salt=3)
    assert (
        "cannot be a number" in error_of(lambda: list(satrap.data.read({"a": id_array(ids, 3)}, schema))).what
    )
