"""A network in parts of several processes is read by any slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from satrap.checkpoint import saved_dense
from satrap.checkpoint.dense import flat_optimizer, pack_optimizer, pack_tensors, unpack_optimizer
from satrap.checkpoint.files import tensor_stream
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.files.tensor_stream import streamed
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import write_file
from satrap.checkpoint.saved_dense import (
    MODEL,
    OPTIMIZER,
    DensePart,
    SavedDense,
    is_dense_file,
    loaded_values,
)
from satrap.errors import CheckpointError
from tests.support.divisions import GROUPS, TYPES, Cuts, boxes, divisions, numbers, sliced
from tests.support.examples import examples


def write(place: Path, parts: list[DensePart]) -> SavedDense:
    storage, files = Storage(str(place)), dict[str, FileEntry]()
    storage.make_folder("data")
    for number, part in enumerate(parts):
        files |= part.write(storage, "data", number)
    return SavedDense(storage, Manifest("data", {}, files))


@settings(deadline=None, max_examples=examples(60))
@given(divisions(), st.sampled_from(TYPES), st.sampled_from([1, 40, 1 << 20]))
def test_any_division_is_read_as_any_other(
    tmp_path_factory: pytest.TempPathFactory,
    division: tuple[list[int], Cuts, Cuts],
    dtype: torch.dtype,
    read: int,
) -> None:
    shape, written, wanted = division
    whole, step = numbers(shape, dtype), torch.tensor(7.0)
    parts = [
        DensePart(
            {"w": sliced(whole, *box).clone(), "same": torch.arange(3)},
            {"state": {0: {"m": sliced(whole, *box).clone(), "step": step, "n": 5}}, "param_groups": GROUPS},
            {"w": (shape, box[0]), "0.m": (shape, box[0])},
        )
        for box in boxes(written)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module in (saved_dense, tensor_stream):
            patch.setattr(module, "READ", read)
        found = write(tmp_path_factory.mktemp("parts"), parts)
        for start, size in boxes(wanted):
            assert torch.equal(found.weights["w"].read(start, size), sliced(whole, start, size))
        file = b"".join(bytes(piece) for piece in streamed(found.weights, {}))
        state = b"".join(bytes(piece) for piece in streamed(*flat_optimizer(found.optimizer)))
    assert loaded_values(found.weights).keys() == {"w", "same"}
    assert torch.equal(load(file)["w"], whole)
    assert torch.equal(load(file)["same"], torch.arange(3))
    whole_state = unpack_optimizer(state)
    assert whole_state["param_groups"] == GROUPS
    assert torch.equal(whole_state["state"][0].pop("m"), whole)
    assert whole_state["state"] == {0: {"step": step, "n": 5}}


def test_files_of_a_whole_network_are_read_alike_and_written_with_the_same_bytes(tmp_path: Path) -> None:
    weights = {"b": numbers([3, 4], torch.float32), "a": numbers([5], torch.bfloat16)}
    optimizer = {"state": {0: {"m": numbers([3, 4], torch.float32), "n": 2}}, "param_groups": GROUPS}
    storage = Storage(str(tmp_path))
    storage.make_folder("data")
    packed = {MODEL: pack_tensors(weights), OPTIMIZER: pack_optimizer(optimizer)}
    files = {name: write_file(storage, f"data/{name}", [data]) for name, data in packed.items()}
    found = SavedDense(storage, Manifest("data", {}, files))
    assert torch.equal(found.weights["b"].read([1, 2], [2, 1]), weights["b"][1:, 2:3])
    assert b"".join(bytes(piece) for piece in streamed(found.weights, {})) == packed[MODEL]
    assert torch.equal(loaded_values(found.optimizer)["state"][0]["m"], optimizer["state"][0]["m"])  # type: ignore[index]


def part(start: list[int], rows: int, shape: Any = (4, 2), dtype: torch.dtype = torch.float32) -> DensePart:
    return DensePart({"w": torch.ones(rows, 2, dtype=dtype)}, {}, {"w": (shape, start)})


@pytest.mark.parametrize(
    "parts",
    [
        [part([0, 0], 2)],
        [part([0, 0], 2), part([3, 0], 2)],
        [part([0, 0], 2), part([1, 0], 2)],
        [part([0, 0], 2), part([2, 0], 2), part([2, 0], 2)],
        [part([0, 0], 2), part([2, 0], 2, (5, 2))],
        [part([0, 0], 2), part([2, 0], 2, dtype=torch.float64)],
        [part([0, 0], 2), part([-1, 0], 2)],
        [part([0, 0], 2), part([2], 2)],
        [part([0, 0], 2), part([2, 0], 2, "no")],
        [part([0, 0], 2), part([2.0, 0], 2)],  # type: ignore[list-item]
    ],
)
def test_parts_that_make_up_no_tensor_are_damage(tmp_path: Path, parts: list[DensePart]) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        write(tmp_path, parts)


def test_a_flipped_byte_is_named(tmp_path: Path) -> None:
    found = write(tmp_path, [part([0, 0], 2), part([2, 0], 2)])
    file = tmp_path / "data" / "model.part-0001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert found.weights["w"].read([0, 0], [2, 2]).sum() == 4
    with pytest.raises(CheckpointError, match="do not match their checksum") as caught:
        found.weights["w"].whole()
    assert caught.value.where == str(file)


def test_names_of_files() -> None:
    good = ["model.safetensors", "optimizer.part-0000.safetensors", "model.part-12345.safetensors"]
    bad = ["model.part-1.safetensors", "model.part-0001.safetensors.new", "worker-000.safetensors"]
    assert all(map(is_dense_file, good))
    assert not any(map(is_dense_file, bad))
