"""A checkpoint of a loop of the user's own continues to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import satrap
from satrap.errors import CheckpointError, ConfigError
from satrap.nn import EmbeddingCollection, RowOptimizer
from satrap.store import Eviction, StoreConfig
from tests.nn.loops import FEATURES, Network, batch, collection, loss_of, table


class Loop(nn.Module):
    """A model of rows and a network, with its optimizers."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        arguments.setdefault("optimizer", satrap.optim.Adam(lr=0.05))
        self.embeddings, self.network = collection(**arguments), Network()
        self.optimizers = torch.optim.Adam(self.network.parameters()), RowOptimizer(self.embeddings)

    def run(self, *seeds: int) -> None:
        for seed in seeds:
            columns = batch(seed)
            loss_of(self.network(self.embeddings(columns)), columns).backward()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        self.embeddings.save(str(folder / "rows"))
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.state_dict(), "optimizers": states}, folder / "state.pt")

    def load(self, folder: Path) -> None:
        saved = torch.load(folder / "state.pt", weights_only=True)
        self.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"optimizer": satrap.optim.SGD(lr=0.1), "store": StoreConfig(dtype="bfloat16")},
        {"store": StoreConfig(memory=1 << 20, eviction=Eviction("lru"))},
    ],
    ids=["adam", "16 bits", "eviction"],
)
def test_a_restored_loop_continues_to_the_bit(tmp_path: Path, arguments: Any) -> None:
    straight, first, second = (Loop(**arguments) for _ in range(3))
    straight.run(*range(8))
    first.run(*range(4))
    first.save(tmp_path)
    first.embeddings.close()
    second.run(30, 31)  # rows that must not stay
    second.load(tmp_path)
    assert second.embeddings.steps == 4
    second.run(*range(4, 8))
    for name, rows in table(straight.embeddings).items():
        assert torch.equal(rows, table(second.embeddings)[name])
    for one, other in zip(straight.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, other)
    straight.embeddings.close()
    second.embeddings.close()


def test_load_reads_the_rows_alone(tmp_path: Path) -> None:
    first, second = Loop(), Loop()
    first.run(1, 2)
    first.embeddings.save(str(tmp_path))
    second.embeddings.load(str(tmp_path))
    assert torch.equal(table(first.embeddings)["user"], table(second.embeddings)["user"])
    states = [loop.state_dict()["embeddings._extra_state"] for loop in (first, second)]
    assert torch.equal(*states)
    for loop in (first, second):
        loop.embeddings.close()


def test_a_state_dict_of_rows_that_are_not_saved_is_refused(tmp_path: Path) -> None:
    loop = Loop()
    loop.state_dict()  # all rows have their first values
    loop.run(1)
    with pytest.raises(ConfigError, match="changed since the last save: 1 steps, 0 saved"):
        loop.state_dict()
    loop.embeddings.save(str(tmp_path))
    loop.state_dict()
    loop.run(2)
    with pytest.raises(ConfigError, match="changed since the last save: 2 steps, 1 saved"):
        loop.state_dict()
    loop.embeddings.close()


def test_the_state_of_a_new_collection_forgets_rows() -> None:
    first, second = Loop(), Loop()
    second.run(1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(table(first.embeddings)["user"], table(second.embeddings)["user"])
    assert second.embeddings.steps == 0


def test_gradients_from_before_are_forgotten(tmp_path: Path) -> None:
    loop = Loop()
    loop.run(1)
    loop.embeddings.save(str(tmp_path))
    loss_of(loop.network(loop.embeddings(batch(2))), batch(2)).backward()
    before = table(loop.embeddings)["user"]
    loop.embeddings.load(str(tmp_path))
    loop.optimizers[1].step()
    assert torch.equal(table(loop.embeddings)["user"], before)
    loop.embeddings.close()


def test_a_folder_with_other_rows_is_refused(tmp_path: Path) -> None:
    loop = Loop()
    loop.run(1)
    loop.embeddings.save(str(tmp_path))
    state = loop.state_dict()
    loop.run(2)
    loop.embeddings.save(str(tmp_path))
    with pytest.raises(CheckpointError, match="other rows than the state_dict refers to"):
        loop.load_state_dict(state)
    loop.embeddings.close()


def test_rows_of_other_tables_are_refused(tmp_path: Path) -> None:
    loop = Loop()
    loop.run(1)
    loop.embeddings.save(str(tmp_path))
    wider = EmbeddingCollection(
        {**FEATURES, "user": satrap.Categorical(dim=8)}, optimizer=satrap.optim.Adam(lr=0.1)
    )
    with pytest.raises(ConfigError, match=r"table 'user' is .*'dim': 8.* and .*'dim': 4"):
        wider.load(str(tmp_path))
    for embeddings in (wider, loop.embeddings):
        embeddings.close()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        torch.zeros(1),
        *(torch.tensor(list(text), dtype=torch.uint8) for text in (b"{", b'{"url": 1}', b"\xff")),
    ],
)
def test_a_state_that_is_no_reference_is_refused(state: Any) -> None:
    loop = Loop()
    with pytest.raises(CheckpointError, match="not a reference to saved rows"):
        loop.embeddings.set_extra_state(state)
    loop.embeddings.close()


def test_a_missing_snapshot_is_an_error(tmp_path: Path) -> None:
    loop = Loop()
    with pytest.raises(CheckpointError, match="the folder has no checkpoint"):
        loop.embeddings.load(str(tmp_path / "none"))
    loop.run(1)  # the rows are as they were
    loop.embeddings.close()


def test_after_damaged_rows_the_state_of_the_last_save_is_read_again(tmp_path: Path) -> None:
    loop = Loop()
    loop.run(1)
    loop.embeddings.save(str(tmp_path / "other"))
    loop.run(2)
    loop.embeddings.save(str(tmp_path / "last"))
    state, rows = loop.state_dict(), table(loop.embeddings)["user"]
    for file in (tmp_path / "other").rglob("table-*"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError):
        loop.embeddings.load(str(tmp_path / "other"))
    assert loop.embeddings.steps == 0
    loop.load_state_dict(state)
    assert torch.equal(table(loop.embeddings)["user"], rows)
    assert loop.embeddings.steps == 2
    loop.embeddings.close()
