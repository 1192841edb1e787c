from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from satrap import launch
from satrap.launch.folder.run_folder import RunFolder
from tests.serve.followed import run_with_snapshots
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, TOWERS, Served, frame, model_of, served, trained


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="session")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has left snapshots of some steps; all but the first are deltas."""
    return run_with_snapshots(tmp_path_factory.mktemp("followed"))


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same of a model of vectors."""
    return run_with_snapshots(tmp_path_factory.mktemp("towers"), TOWERS)


@pytest.fixture(scope="module")
def server(run: RunFolder) -> Iterator[Served]:
    with served(model_of(run)) as found:
        yield found


@pytest.fixture(scope="session")
def rows() -> pd.DataFrame:
    """Rows that were not trained: some of their ids have no row."""
    table = frame(60, seed=7)[COLUMNS]
    table.loc[5, "book"] = 77
    table.loc[6, "user"] = "nobody"
    return table


@pytest.fixture(scope="session")
def expected(
    run: RunFolder, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The scores of `satrap predict`."""
    folder = tmp_path_factory.mktemp("expected")
    source, output = folder / "rows.parquet", folder / "scores.parquet"
    rows.to_parquet(source)
    launch.predict(run, [str(source)], output, columns=["user"])
    scores: dict[str, list[Any]] = pd.read_parquet(output).drop(columns="user").to_dict("list")
    return scores


@pytest.fixture(scope="module")
def alike(server: Served, rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    """Rows whose lists have equal lengths and whose numbers are known, and their scores by JSON."""
    table = rows.copy()
    table["tags"] = [[row % 9, 3] for row in range(len(table))]
    table["price"] = table["price"].fillna(1.5)
    _, answer = server.score({"items": plain(table)})
    return table, answer["predictions"]
