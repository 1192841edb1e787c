import json
from dataclasses import replace

import pytest

from satrap.errors import ConfigError, DataError
from satrap.tools.prepare.manifest import MANIFEST, PrepareManifest
from satrap.tools.prepare.parts import OutputPart

INPUTS = {"/a.csv": {"size": 10, "version": "1", "rows": True}}
PART = OutputPart("train", 0, 3, [0, 5, 1, 0, 1], None, 7, 100, 9)


def opened(folder, settings=None, inputs=None):
    manifest = PrepareManifest(folder, settings or {"version": 1}, inputs or INPUTS)
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
    with pytest.raises(ConfigError, match="satrap prepare did not write it"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("inputs", "what", "where"),
    [
        ({"/a.csv": {**INPUTS["/a.csv"], "size": 11}}, "the input has changed", "/a.csv"),
        ({"/a.csv": {**INPUTS["/a.csv"], "version": "2"}}, "the input has changed", "/a.csv"),
        ({**INPUTS, "/b.csv": INPUTS["/a.csv"]}, "not the same as before", "/b.csv"),
        ({"/b.csv": INPUTS["/a.csv"]}, "not the same as before", "/a.csv"),
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


def test_another_view_of_the_files_is_refused(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    manifest = opened(here)
    view = manifest.view()
    view.check({"version": 1}, INPUTS)
    with pytest.raises(ConfigError, match="the node sees another output folder"):
        replace(view, folder=there).check({"version": 1}, INPUTS)
    with pytest.raises(ConfigError, match="version is 2, but 1 here"):
        view.check({"version": 2}, INPUTS)
    for other, what in (
        ({"/a.csv": {**INPUTS["/a.csv"], "version": "2"}}, "another input file"),
        ({}, "other input files"),
        ({**INPUTS, "/b.csv": INPUTS["/a.csv"]}, "other input files"),
    ):
        with pytest.raises(DataError, match=what) as caught:
            view.check({"version": 1}, other)
        assert caught.value.where == ("/b.csv" if len(other) == 2 else "/a.csv")
    manifest.tidy()
    assert [path.name for path in here.iterdir()] == [MANIFEST]
