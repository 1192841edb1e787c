import json

import pytest

from satrap.errors import ConfigError, DataError
from satrap.prepare.manifest import MANIFEST, Manifest
from satrap.prepare.parts import Part

INPUTS = {"/a.csv": {"size": 10, "version": "1", "rows": True}}
PART = Part("train", 0, 3, [0, 5, 1, 0, 1], None, 7, 100, 9)


def opened(folder, settings=None, inputs=None):
    manifest = Manifest(folder, settings or {"version": 1}, inputs or INPUTS)
    manifest.open()
    return manifest


def test_what_was_added_is_there_after_a_restart(tmp_path):
    (tmp_path / "lock").touch()
    manifest = opened(tmp_path)
    (tmp_path / "x.part").write_bytes(b"123456789")
    manifest.add(tmp_path / "x.part", PART)
    again = opened(tmp_path)
    assert again.done("train", 0) == {3: PART}
    assert again.done("train", 1) == again.done("test", 0) == {}
    assert (tmp_path / "train" / "00000-00003.parquet").read_bytes() == b"123456789"


def test_what_a_killed_process_left_is_removed(tmp_path):
    opened(tmp_path)
    (tmp_path / "train-0-0.77.part").touch()
    opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_a_kill_before_the_first_manifest_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / f"{MANIFEST}.part").write_text("{")
    opened(tmp_path)
    assert json.loads((tmp_path / MANIFEST).read_text())["parts"] == []


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds something else"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("inputs", "what", "where"),
    [
        ({"/a.csv": {**INPUTS["/a.csv"], "size": 11}}, "the input has changed", "/a.csv"),
        ({"/a.csv": {**INPUTS["/a.csv"], "version": "2"}}, "the input has changed", "/a.csv"),
        ({**INPUTS, "/b.csv": INPUTS["/a.csv"]}, "other files than before", "/b.csv"),
        ({"/b.csv": INPUTS["/a.csv"]}, "other files than before", "/a.csv"),
    ],
)
def test_other_inputs_are_refused_and_nothing_is_lost(tmp_path, inputs, what, where):
    opened(tmp_path)
    before = (tmp_path / MANIFEST).read_bytes()
    with pytest.raises(DataError, match=what) as caught:
        opened(tmp_path, inputs=inputs)
    assert caught.value.where == where
    assert f"remove {tmp_path}" in caught.value.fix
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_other_settings_are_refused(tmp_path):
    opened(tmp_path)
    with pytest.raises(ConfigError, match="part_bytes differs"):
        opened(tmp_path, settings={"version": 1, "part_bytes": 5})
