"""Deltas: a real store with eviction against its own export; chains that are broken on purpose; faults."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.checkpoint import Series, read_checkpoint, verify
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.rewrite import compact, forget
from satrap.errors import CheckpointError
from tests import faults
from tests.checkpoint.disks import PowerCutError, PowerLossDisk, local, rebuild
from tests.checkpoint.states import Bytes, Trained, content
from tests.support.examples import examples


def read(root: Path, step: int) -> Bytes:
    return content(iter(read_checkpoint(f"{root}/step-{step:08d}").chunks))


def chain(root: Path, deltas: int = 3) -> dict[int, Bytes]:
    """Write a full snapshot and deltas; return what the store held at each."""
    run, held = Trained(root, keep=9), {}
    for _ in range(deltas + 1):
        run.train()
        held[run.step] = run.save()
    assert run.shard.statistics().tables["a"].evicted > 0
    run.shard.close()
    return held


@settings(max_examples=examples(8), deadline=None)
@given(
    plan=st.lists(st.sampled_from(["train", "delta", "full", "fail", "reopen", "compact"]), max_size=14),
    seed=st.integers(0, 99),
)
def test_every_kept_snapshot_is_what_the_store_was(
    plan: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("run")
    run, held = Trained(root, seed), {}
    for act in ["train", "full", *plan, "train", "delta"]:
        if act == "train":
            run.train()
        elif act == "fail" and run.series.followable(run.step):
            taken, delta = run.take()
            full_disk = faults.armed("disk.sync", faults.fail(lambda: OSError(5, "no")), at=2)
            with full_disk, pytest.raises(CheckpointError):
                run.series.write(run.step, taken)
            run.shard.changes.put_back(delta)
        elif act in ("delta", "full"):
            held[run.step] = run.save(full=act == "full")
        elif act == "reopen":  # a new process: it reads, follows, goes on
            run.series = Series(str(root))
            step, checkpoint = run.series.read()
            assert content(iter(checkpoint.chunks)) == held[step]
            run.shard.changes.stop()  # this store may be beyond that: the next one is full
            run.series = Series(str(root))
        elif act == "compact":
            compact(run.series.place(max(run.series.steps())))
    for step in run.series.steps():
        assert read(root, step) == held[step]
        run.series.verify(step)
    assert run.series.latest() == max(held)
    run.shard.close()


def test_a_delta_holds_the_changed_rows_only(tmp_path: Path) -> None:
    run = Trained(tmp_path)
    run.train(2000)
    run.save()
    run.train(10)
    run.save()
    (_, full), (_, delta) = open_chain(run.series.place(2)).members
    assert delta.delta is not None
    assert (delta.delta.number, delta.delta.previous) == (1, "step-00000001")
    assert sum(delta.rows().values()) <= 30
    assert sum(full.rows().values()) > 1000


def test_going_on_after_loading_a_delta(tmp_path: Path) -> None:
    """Loaded, followed, trained on, saved as a delta: as if there had been one process."""
    held = chain(tmp_path)
    again = Trained(tmp_path, seed=7)
    step, checkpoint = again.series.read()
    for table, chunk in checkpoint.chunks:
        again.shard.load(table, chunk)
    assert again.rows() == held[step]
    again.shard.changes.follow()
    again.step = step
    again.train(20)
    assert again.series.followable(again.step)
    rows = again.save()
    assert len(open_chain(again.series.place(again.step)).members) == 5
    assert read(tmp_path, again.step) == rows


def place(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def test_a_missing_delta_is_refused(tmp_path: Path) -> None:
    held = chain(tmp_path)
    shutil.rmtree(place(tmp_path, 2))
    with pytest.raises(CheckpointError, match=r"delta step-00000003 follows step-00000002, which is missing"):
        read(tmp_path, 4)
    assert read(tmp_path, 1) == held[1]


def test_a_duplicated_delta_is_refused(tmp_path: Path) -> None:
    chain(tmp_path)
    shutil.copytree(place(tmp_path, 3), place(tmp_path, 5))
    with pytest.raises(CheckpointError, match="step-00000005 is a copy of delta step-00000003"):
        read(tmp_path, 5)


def test_reordered_deltas_are_refused(tmp_path: Path) -> None:
    chain(tmp_path)
    place(tmp_path, 2).rename(tmp_path / "x")
    place(tmp_path, 3).rename(place(tmp_path, 2))
    (tmp_path / "x").rename(place(tmp_path, 3))
    for step, said in (
        (2, "is a copy of delta"),
        (3, "is a copy of delta"),
        (4, "follows another step-00000003"),
    ):
        with pytest.raises(CheckpointError, match=said):
            read(tmp_path, step)


@pytest.mark.parametrize("step", [1, 2])
def test_a_foreign_snapshot_is_refused(step: int, tmp_path: Path) -> None:
    chain(tmp_path / "one")
    chain(tmp_path / "two")
    shutil.rmtree(place(tmp_path / "one", step))
    shutil.copytree(place(tmp_path / "two", step), place(tmp_path / "one", step))
    said = f"delta step-{step + 1:08d} follows another step-{step:08d}, not the one in this folder"
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path / "one", 4)


def test_a_delta_without_anything_to_follow_is_refused(tmp_path: Path) -> None:
    run = Trained(tmp_path)
    run.train()
    checkpoint, _ = run.take()
    checkpoint.deleted = {}
    with pytest.raises(CheckpointError, match="delta step-00000001 has no snapshot to follow"):
        run.series.write(1, checkpoint)
    assert run.series.steps() == []


def test_keep_counts_full_snapshots_with_their_deltas(tmp_path: Path) -> None:
    run = Trained(tmp_path, keep=2)
    kept = []
    for number in range(1, 10):
        run.train(20)
        run.save(full=number % 3 == 1)  # full at 1, 4, 7
        kept.append(run.series.steps())
    assert kept[3:7] == [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7]]
    assert kept[-1] == [4, 5, 6, 7, 8, 9]


def test_what_a_kept_delta_builds_on_stays(tmp_path: Path) -> None:
    """Also what lies before a full snapshot that it does not follow."""
    run, other = Trained(tmp_path, keep=1), Trained(tmp_path, seed=5, keep=9)
    for _ in range(2):
        run.train(50)
        run.save()
    other.step = 2
    other.train(50)
    other.save()
    run.step = 3
    run.train(50)
    rows = run.save()
    assert run.series.steps() == [1, 2, 3, 4]
    assert read(tmp_path, 4) == rows
    run.shard.close()
    other.shard.close()


@pytest.mark.chaos
def test_removing_stops_halfway(tmp_path: Path) -> None:
    """Whichever removal fails: what is left can be read."""
    for k in range(1, 7):
        run, held = Trained(tmp_path / str(k), keep=1), {}
        for _ in range(3):
            run.train(20)
            held[run.step] = run.save()
        run.train(20)
        with faults.armed("disk.remove", faults.fail(lambda: OSError(5, "no")), at=k):
            held[4] = run.save(full=True)
        for step in run.series.steps():
            assert read(tmp_path / str(k), step) == held[step]


def test_compaction_frees_a_snapshot_of_those_before(tmp_path: Path) -> None:
    held = chain(tmp_path)
    compact(str(place(tmp_path, 3)))
    for step in (1, 2, 3, 4):
        assert read(tmp_path, step) == held[step]
    shutil.rmtree(place(tmp_path, 1))
    shutil.rmtree(place(tmp_path, 2))
    assert read(tmp_path, 3) == held[3]
    assert read(tmp_path, 4) == held[4]  # still a delta, of the compacted one
    again = compact(str(place(tmp_path, 3)))
    assert again.delta is None


def test_forget_reaches_every_member(tmp_path: Path) -> None:
    held = chain(tmp_path)
    victim = next(
        id_ for table, id_, _, _ in held[4] if table == "a" and ("a", id_) in {r[:2] for r in held[1]}
    )
    for step in (1, 2, 3, 4):
        forget(str(place(tmp_path, step)), "a", int.from_bytes(victim, "little"))
    for step in (1, 2, 3, 4):
        assert read(tmp_path, step) == [row for row in held[step] if row[:2] != ("a", victim)]
        verify(str(place(tmp_path, step)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["table-000.arrow", "deleted.safetensors", "model.safetensors"])
def test_damage_in_a_member_is_named_and_repaired(file: str, tmp_path: Path) -> None:
    held = chain(tmp_path)
    flip(next(place(tmp_path, 2).glob(f"data-*/{file}")))
    series = Series(str(tmp_path))
    for step in (2, 3, 4):
        with pytest.raises(CheckpointError) as error:
            verify(str(place(tmp_path, step)))
        assert "step-00000002" in error.value.where
        assert file in error.value.where
    good, removed = series.repair()
    assert good == 1
    assert sorted(removed) == [2, 3, 4]
    assert read(tmp_path, 1) == held[1]


@pytest.mark.chaos
def test_every_call_failing_once(tmp_path: Path) -> None:
    """A delta is there or not, whole; the next one holds what a failed one would have."""
    for k in range(1, 99):
        root = tmp_path / str(k)
        run, held = Trained(root), {}
        run.train(50)
        held[1] = run.save()
        run.train(50)
        held[2] = run.rows()
        checkpoint, delta = run.take()
        with faults.armed("disk.*", faults.fail(lambda: OSError(errno.EIO, "error")), at=k) as fault:
            try:
                run.series.write(2, checkpoint)
                done = True
            except CheckpointError:
                run.shard.changes.put_back(delta)
                done = False
        steps = Series(str(root)).steps()
        assert steps == [1, 2] or (steps == [1] and not done)
        assert all(read(root, step) == held[step] for step in steps)
        run.train(50)
        held[3] = run.save()
        assert all(read(root, step) == held[step] for step in Series(str(root)).steps())
        if not fault.fired:
            assert k > 15
            return
    raise AssertionError("the save never ended")


@pytest.mark.chaos
def test_power_cut_at_every_call(tmp_path: Path) -> None:
    for k in range(1, 200):
        root = tmp_path / str(k)
        run = Trained(root)
        run.train(50)
        held = {1: run.save()}
        run.train(50)
        held[2] = run.rows()
        disk = PowerLossDisk(k)
        disk.adopt(root)
        checkpoint, _ = run.take()
        with local(disk):
            try:
                run.series._storage.disk = disk
                run.series.write(2, checkpoint)
                acknowledged = True
            except PowerCutError:
                acknowledged = False
        for number, state in enumerate(disk.states()):
            found = rebuild(state, root, tmp_path / f"{k}-{number}")
            steps = Series(str(found)).steps()
            assert steps in ([[1, 2]] if acknowledged else [[1], [1, 2]])
            assert all(read(found, step) == held[step] for step in steps)
        run.shard.close()
        if acknowledged:
            return
    raise AssertionError("the save never ended")
