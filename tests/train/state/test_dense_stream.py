"""Process 0 writes the network of all as one file, without having it; over real meshes: `test_meshes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.checkpoint.dense import pack_optimizer, pack_tensors
from satrap.checkpoint.files import tensor_stream
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.saved_dense import MODEL, OPTIMIZER, DensePart
from satrap.dense import Workers
from satrap.train.state.dense_stream import DenseStream
from tests.dense.threads import together
from tests.support.divisions import GROUPS, TYPES, Cuts, boxes, divisions, numbers, sliced
from tests.support.examples import examples


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "saved")
        return
    yield "memory://saved"
    fsspec.filesystem("memory").rm("/saved", recursive=True)


def written(parts: list[DensePart], place: str) -> None:
    """Have as many workers as there are parts write a checkpoint."""

    def work(workers: Workers) -> None:
        own = DenseStream(workers, parts[workers.rank])
        if workers.rank:
            own.assist()
            return
        try:
            write_checkpoint(place, Checkpoint({}, {}, {}, (), dense=own.write))
        finally:
            own.release()

    together(len(parts), work)


def file(place: str, name: str) -> bytes:
    storage = Storage(place)
    manifest = read_manifest(storage)
    return storage.read(f"{manifest.data}/{name}", manifest.files[name])


@settings(deadline=None, max_examples=examples(40))
@given(divisions(), st.sampled_from(TYPES), st.sampled_from([1, 40, 1 << 20]))
def test_any_division_is_written_with_the_bytes_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    division: tuple[list[int], Cuts, Cuts],
    dtype: torch.dtype,
    read: int,
) -> None:
    """The first worker has nothing but what all have; only the last has one of the weights."""
    shape, cuts, _ = division
    assume(len(boxes(cuts)) < 9)
    whole, step, same = numbers(shape, dtype), torch.tensor(7.0), {"same": torch.arange(3)}
    parts = [DensePart(same, {}, {})]
    for box in boxes(cuts):
        own = sliced(whole, *box)
        state = {0: {"m": own, "step": step, "n": 5}}
        region = (shape, box[0])
        optimizer = {"state": state, "param_groups": GROUPS}
        parts.append(DensePart({**same, "w": own}, optimizer, {"w": region, "0.m": region}))
    last = torch.ones(2, 2)
    parts[-1] = DensePart({**parts[-1].weights, "last": last}, parts[-1].optimizer, parts[-1].regions)
    place = str(tmp_path_factory.mktemp("saved"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_stream, "READ", read)
        written(parts, place)
    assert file(place, MODEL) == pack_tensors({"w": whole, "last": last, **same})
    state = {0: {"m": whole, "step": step, "n": 5}}
    assert file(place, OPTIMIZER) == pack_optimizer({"state": state, "param_groups": GROUPS})


class DeadError(Exception):
    """Stands for the death of a process."""


def halves(number: float) -> list[DensePart]:
    regions = [([4, 8], [0, 0]), ([4, 8], [2, 0])]
    return [DensePart({"w": torch.full((2, 8), number)}, {}, {"w": region}) for region in regions]


@pytest.mark.parametrize("dying", [0, 1])
def test_a_death_amid_a_file_leaves_the_checkpoint_before(
    dying: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_stream, "READ", 32)  # a row
    written(halves(1.0), place)
    slices, sent = DenseStream._slices, list[int]()

    def die(self: DenseStream, name: str, number: int) -> Any:
        if self._workers.rank == dying:
            sent.append(number)
            if number == 2:
                raise DeadError
        return slices(self, name, number)

    monkeypatch.setattr(DenseStream, "_slices", die)
    with pytest.raises(DeadError):
        written(halves(2.0), place)
    assert sent == [0, 1, 2]
    assert read_checkpoint(place).model["w"].unique().tolist() == [1.0]
    folders = [name for name in Storage(place).names() if name.startswith("data-")]
    assert folders == [read_manifest(Storage(place)).data]


def test_a_part_that_nobody_has_is_not_written_as_if_it_were_there(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="parts of w are missing"):
        written(halves(1.0)[:1], str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "manifest.json").exists()


def test_who_is_let_go_sends_nothing() -> None:
    def work(workers: Workers) -> None:
        own = DenseStream(workers, DensePart({"w": torch.ones(1)}))
        own.assist() if workers.rank else own.release()

    together(3, work)
