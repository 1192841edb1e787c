"""Numbered snapshots: every call failing once, power cuts at every call, keeping, cleaning, repairing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import satrap
from satrap.checkpoint import Series, read_checkpoint, write_checkpoint
from satrap.checkpoint.files.disk import LocalDisk
from satrap.checkpoint.manifest import MANIFEST, ChainLink
from satrap.checkpoint.rewrite import compact
from satrap.checkpoint.series import find, newest
from satrap.errors import CheckpointError
from satrap.id_counts import IdCounts
from satrap.schema import Schema
from tests import faults
from tests.checkpoint.disks import PowerCutError, PowerLossDisk, local, rebuild
from tests.checkpoint.states import committed, equal, make_checkpoint, make_chunk


def leftovers(root: Path) -> list[str]:
    """Names that belong to no committed snapshot."""
    series = Series(str(root))
    known = {f"step-{step:08d}" for step in series.steps()}
    inner = [p for name in known for p in (root / name).iterdir() if p.name != "manifest.json"]
    return [p.name for p in root.iterdir() if p.name not in known] + (
        ["data"] if len(inner) != len(known) else []
    )


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_newest_stay(place: str, tmp_path: Path) -> None:
    series = Series(str(tmp_path) if place == "local" else f"memory://{tmp_path.name}/series", keep=2)
    assert series.latest() is None
    for step in (10, 20, 30):
        series.write(step, make_checkpoint(step))
    assert series.steps() == [20, 30]
    step, checkpoint = series.read()
    assert step == 30
    equal(make_checkpoint(30), checkpoint)


def test_best_weights_stay_as_long_as_a_snapshot_names_them(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=1)
    write_checkpoint(series.place(5, best=True), make_checkpoint(5))
    state = make_checkpoint(10)
    state.settings["best"] = "best-00000005"
    series.write(10, state)
    equal(make_checkpoint(5), read_checkpoint(f"{series.url}/best-00000005"))
    series.write(20, make_checkpoint(20))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020"]


def test_a_snapshot_is_as_good_as_the_best_weights_that_it_names(tmp_path: Path) -> None:
    series = Series(str(tmp_path))
    series.write(8, make_checkpoint(8))
    write_checkpoint(series.place(9, best=True), make_checkpoint(9))
    state = make_checkpoint(10)
    state.settings["best"] = "best-00000009"
    series.write(10, state)
    known: set[str] = set()
    series.verify(10, known=known)
    assert {Path(url).parent.name for url in known} == {"best-00000009", "step-00000010"}
    flip(next((tmp_path / "best-00000009").glob("data-*/model.safetensors")))
    with pytest.raises(CheckpointError) as raised:
        series.verify(10)
    assert "best-00000009" in raised.value.where
    good, found = series.repair()
    assert (good, list(found), series.steps()) == (8, [10], [8])


def test_the_newest_best_weights_stay_until_the_run_has_finished(tmp_path: Path) -> None:
    root, begin = tmp_path / "run", 99_999_999  # the next number has a digit more
    series = Series(f"{root}/", keep=1)
    write_checkpoint(series.place(0, best=True), make_checkpoint())
    series.prune()
    assert [p.name for p in root.iterdir()] == ["best-00000000"]
    series.write(begin, make_checkpoint())
    series.write(begin + 1, make_checkpoint())
    assert [p.name for p in root.iterdir()] == ["step-100000000"]
    for step in (begin, begin + 1, begin + 2):
        write_checkpoint(series.place(step, best=True), make_checkpoint())
    series.prune()
    assert sorted(p.name for p in root.iterdir()) == ["best-100000000", "best-100000001", "step-100000000"]
    series.prune(finished=True)
    assert [p.name for p in root.iterdir()] == ["step-100000000"]
    shutil.rmtree(root / "step-100000000")
    series.prune()
    assert root.exists()
    series.prune(finished=True)
    assert not root.exists()


def test_old_snapshots_are_removed_although_one_of_them_is_damaged(tmp_path: Path) -> None:
    """What is damaged, and what builds on it, goes when its turn comes; what is kept loads."""
    series = Series(str(tmp_path), keep=2)
    for step in (10, 20):
        series.write(step, make_checkpoint(step))
    (tmp_path / "step-00000010" / MANIFEST).write_text("{")
    series.write(30, make_checkpoint(30))
    assert series.steps() == [20, 30]
    (tmp_path / "step-00000030" / MANIFEST).write_text("{")
    series.write(40, make_checkpoint(40))
    assert series.steps() == [20, 30, 40]  # a damaged one is never among those that are kept
    series.write(50, make_checkpoint(50))
    assert series.steps() == [40, 50]
    for step in series.steps():
        equal(make_checkpoint(step), series.read(step)[1])


def test_best_weights_that_only_a_damaged_snapshot_may_name_stay(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=2)
    for step in (10, 20):
        write_checkpoint(series.place(step - 5, best=True), make_checkpoint(step))
        state = make_checkpoint(step)
        state.settings["best"] = f"best-{step - 5:08d}"
        series.write(step, state)
    (tmp_path / "step-00000010" / MANIFEST).write_text("{")
    series.prune()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best-00000005",
        "best-00000015",
        "step-00000010",
        "step-00000020",
    ]


def test_what_a_run_has_is_found(tmp_path: Path) -> None:
    run, folder = str(tmp_path / "run"), f"{tmp_path}/run/checkpoints"
    with pytest.raises(CheckpointError, match="the folder has no checkpoint") as raised:
        find(run)
    assert raised.value.where == run
    names = ["step-00000002", "best-00000005", "step-00000010"]
    for name in (*names, "other-00000003"):
        write_checkpoint(f"{folder}/{name}", make_checkpoint())
    (tmp_path / "run/checkpoints/step-00000099").mkdir()
    inside = {name: f"{folder}/{name}" for name in names}
    for place in (run, f"{run}/", folder):
        assert list(find(place).items()) == list(inside.items())
        assert newest(place) == f"{folder}/step-00000010"
    write_checkpoint(f"{run}/model", make_checkpoint())
    assert list(find(run).items()) == [*inside.items(), ("model", f"{run}/model")]
    assert newest(run) == f"{run}/model"
    assert find(f"{run}/model/") == {"model": f"{run}/model"}
    for name in names[::2]:
        shutil.rmtree(f"{folder}/{name}")
    assert newest(folder) == f"{folder}/best-00000005"


def test_no_snapshots(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the folder has no snapshots") as raised:
        Series(f"{tmp_path}/").read()
    assert raised.value.where == str(tmp_path)
    broken = faults.armed("disk.list", faults.fail(lambda: OSError(errno.EIO, "broken")))
    with broken, pytest.raises(CheckpointError, match=r"the snapshots cannot be listed: .*broken") as raised:
        Series(str(tmp_path)).steps()
    assert raised.value.where == str(tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.slow)])
def test_every_call_failing_once(code: int, tmp_path: Path) -> None:
    """For each k: the save fails loudly or succeeds, the reader sees old or new, and the next save works."""
    k, failures = 0, 0
    while True:
        k += 1
        root = tmp_path / str(k)
        series = Series(str(root), keep=2)
        series.write(1, make_checkpoint(1))
        with faults.armed("disk.*", faults.fail(lambda: OSError(code, os.strerror(code))), at=k) as fault:
            try:
                series.write(2, make_checkpoint(2))
                done = True
            except CheckpointError as error:
                said, done = error.what, False
        assert committed(root) in ([{1: 1, 2: 2}] if done else [{1: 1}, {1: 1, 2: 2}])
        assert done or os.strerror(code) in said
        failures += not done
        series.write(3, make_checkpoint(3))
        assert list(committed(root))[-1] == 3
        assert leftovers(root) == []
        if not fault.fired:
            break
    assert failures >= 15


@pytest.mark.parametrize("point", ["disk.sync", "disk.sync_folder"])
def test_whatever_cannot_be_made_durable_fails_the_save(point: str, tmp_path: Path) -> None:
    """All syncs of a save but the last one, which is of the name of a manifest already in place."""
    with faults.armed(point, lambda _: None, at=10**9) as counting:
        Series(str(tmp_path / "whole")).write(1, make_checkpoint(1))
    for at in range(1, counting.hits):
        series = Series(str(tmp_path / str(at)))
        with (
            faults.armed(point, faults.fail(lambda: OSError(errno.EIO, "broken")), at=at),
            pytest.raises(CheckpointError, match="broken"),
        ):
            series.write(1, make_checkpoint(1))
        assert series.steps() == []


@pytest.mark.chaos
@pytest.mark.parametrize("same", [False, True])
def test_power_cut_at_every_call(same: bool, tmp_path: Path) -> None:
    """Whatever of the not yet durable part survives, the reader sees the old snapshot or the new, whole."""
    new = 1 if same else 2  # over the older one, or beside it
    for k in range(1, 200):
        root = tmp_path / str(k)
        Series(str(root)).write(1, make_checkpoint(1))
        disk = PowerLossDisk(k)
        disk.adopt(root)
        with local(disk):
            try:
                Series(str(root)).write(new, make_checkpoint(7))
                acknowledged = True
            except PowerCutError:
                acknowledged = False
        for number, state in enumerate(disk.states()):
            found = committed(rebuild(state, root, tmp_path / f"{k}-{number}"))
            before, after = {1: 1.0}, {1: 1.0, new: 7.0}
            assert found in ([after] if acknowledged else [before, after]), (k, number)
        if acknowledged:
            return
    raise AssertionError("the save never ended")


class Unsynced(PowerLossDisk):
    """Forgets one kind of fsync: what a mutation of the code would do."""

    def __init__(self, forget: str) -> None:
        super().__init__()
        self._forget = forget

    def sync(self, file: object) -> None:
        if self._forget != "sync":
            super().sync(file)  # type: ignore[arg-type]

    def sync_folder(self, path: str) -> None:
        if not (self._forget == "data" and "data-" in path) and not (
            self._forget == "names" and "data-" not in path
        ):
            super().sync_folder(path)


@pytest.mark.parametrize("forget", ["sync", "data", "names"])
def test_the_power_cut_test_notices_a_missing_fsync(forget: str, tmp_path: Path) -> None:
    disk = Unsynced(forget)
    with local(disk):
        Series(str(tmp_path / "run")).write(1, make_checkpoint(1))
    wrong = 0
    for number, state in enumerate(disk.states()):
        try:
            rebuilt = rebuild(
                {n: c for n, c in state.items() if n.startswith(str(tmp_path / "run") + "/")},
                tmp_path / "run",
                tmp_path / str(number),
            )
            wrong += committed(rebuilt) != {1: 1.0}
        except CheckpointError:
            wrong += 1
    assert wrong


def test_leftovers_of_a_dead_attempt_never_join_a_later_one(tmp_path: Path) -> None:
    """A save dies after its rows are written; the next one at the same step holds its own rows only."""
    series = Series(str(tmp_path))
    with faults.armed("checkpoint.data_written", faults.fail(PowerCutError)), pytest.raises(PowerCutError):
        series.write(1, make_checkpoint(1))
    dead = {p.name for p in (tmp_path / "step-00000001").iterdir()}
    assert len(dead) == 1
    assert series.steps() == []
    state = make_checkpoint(2)
    state.chunks = [("user", make_chunk("user", [3], 4, 1))]
    series.write(1, state)
    assert dead.isdisjoint(p.name for p in (tmp_path / "step-00000001").iterdir())
    assert [list(chunk.ids) for _, chunk in series.read()[1].chunks] == [[3]]


def test_a_dead_attempt_at_another_step_is_cleaned(tmp_path: Path) -> None:
    series = Series(str(tmp_path))
    with faults.armed("checkpoint.data_written", faults.fail(PowerCutError)), pytest.raises(PowerCutError):
        series.write(1, make_checkpoint(1))
    series.write(2, make_checkpoint(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def flip(path: Path, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def test_repair_goes_back_to_the_last_good(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=3)
    for step in (1, 2, 3):
        series.write(step, make_checkpoint(step))
    flip(next((tmp_path / "step-00000003").glob("data-*/table-000.arrow")))
    flip(tmp_path / "step-00000002" / "manifest.json")
    good, removed = series.repair()
    assert good == 1
    assert sorted(removed) == [2, 3]
    assert "table-000.arrow" in removed[3].where
    assert series.steps() == [1]
    equal(make_checkpoint(1), series.read()[1])


def test_repair_removes_nothing_when_nothing_is_good(tmp_path: Path) -> None:
    series = Series(str(tmp_path))
    series.write(1, make_checkpoint(1))
    flip(tmp_path / "step-00000001" / "manifest.json")
    assert series.repair()[0] is None
    assert (tmp_path / "step-00000001" / "manifest.json").exists()


def test_the_manifest_of_a_removed_snapshot_goes_first(tmp_path: Path) -> None:
    """Removing stops halfway: what is left is no snapshot, not a damaged one."""
    series = Series(str(tmp_path), keep=1)
    series.write(1, make_checkpoint(1))

    class Half(LocalDisk):
        def remove(self, path: str) -> None:
            if path.endswith("step-00000001"):
                os.remove(next(Path(path).glob("data-*/model.safetensors")))
                raise OSError(errno.EIO, "Input/output error")
            super().remove(path)

    with local(Half()):
        Series(str(tmp_path), keep=1).write(2, make_checkpoint(2))
    assert committed(tmp_path) == {2: 2.0}
    assert (tmp_path / "step-00000001").exists()
    assert read_checkpoint(str(tmp_path / "step-00000002")).settings == {"steps": 2}


@pytest.mark.parametrize("lost", ["nothing was written", "it was removed", "it is of the same step", "left"])
def test_a_delta_needs_another_snapshot_that_is_there(lost: str, tmp_path: Path) -> None:
    series = Series(str(tmp_path))
    if lost != "nothing was written":
        series.write(1, make_checkpoint(1))
    if lost == "it was removed":
        shutil.rmtree(tmp_path / "step-00000001")
    if lost == "left":
        series.unfollow()
    step = 1 if lost == "it is of the same step" else 2
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not series.followable(step)
    delta = make_checkpoint(2)
    delta.deleted = {}
    with pytest.raises(CheckpointError, match=f"delta step-0000000{step} has no snapshot to follow"):
        series.write(step, delta)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_delta_follows_what_was_written_or_read_last(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    series.write(1, make_checkpoint(1))
    for step in (2, 3):
        delta = make_checkpoint(step)
        delta.chunks, delta.deleted = [], {}
        assert series.followable(step)
        assert series.write(step, delta).delta == ChainLink(
            f"step-0000000{step}", step - 1, f"step-0000000{step - 1}", series.manifest(step - 1).id
        )
    series.read(2)
    delta = make_checkpoint(4)
    delta.chunks, delta.deleted = [], {}
    assert series.write(4, delta).delta == ChainLink(
        "step-00000004", 2, "step-00000002", series.manifest(2).id
    )


def test_a_delta_has_the_counts_of_the_snapshot_before_it(tmp_path: Path) -> None:
    """It writes them only if they changed; after `compact` it no longer needs that snapshot."""
    counts = IdCounts(np.array([3, 5], np.uint64), np.array([[1], [2]], np.uint32))
    series, written = Series(str(tmp_path), keep=9), {}
    for step, current in (
        (1, counts),
        (2, counts),
        (3, counts),
        (4, counts.without(3)),
        (5, counts.without(3)),
    ):
        schema = Schema(["y"], {"n": satrap.Numeric(column="user", count="log1p", counts=current)})
        state = make_checkpoint(step)
        state.settings["schema"] = schema.to_dict()
        state.chunks, state.deleted = (), {} if step > 1 else None
        manifest = series.write(step, state)
        written[step] = [name for name in manifest.files if name.startswith("counts-")], schema
    assert [bool(files) for files, _ in written.values()] == [True, False, False, True, False]

    def check() -> None:
        for step, (_, schema) in written.items():
            assert Schema.from_dict(series.read(step)[1].settings["schema"]) == schema

    check()
    for step in (3, 5):
        compact(series.place(step))
        assert "counts-000.safetensors" in series.manifest(step).files
    check()
    shutil.rmtree(tmp_path / "step-00000001")
    assert Schema.from_dict(series.read(3)[1].settings["schema"]) == written[3][1]
    follower = Series(str(tmp_path), keep=9)
    follower.read(5)
    state = make_checkpoint(6)
    state.settings["schema"], state.chunks, state.deleted = written[5][1].to_dict(), (), {}
    assert not any(name.startswith("counts-") for name in follower.write(6, state).files)
    assert Schema.from_dict(follower.read(6)[1].settings["schema"]) == written[5][1]
