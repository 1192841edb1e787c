"""`prepare`: converts a recipe's raw files to a folder of prepared files, resuming earlier work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from satrap.config import Recipe
from satrap.config.keys.data import TimeSplitKeys
from satrap.config.recipe import checked
from satrap.config.source import RecipeSource
from satrap.data import Dataset
from satrap.data.formats.files import File, find_files
from satrap.data.source import FileSource
from satrap.errors import DataError
from satrap.launch.datasets import CSV_KEYS, PARTS, open_whole
from satrap.launch.folder.run_folder import locked
from satrap.tools.prepare import pool, ray_pool
from satrap.tools.prepare.layout import OutputLayout, layout
from satrap.tools.prepare.manifest import VERSION, PrepareManifest, View
from satrap.tools.prepare.parts import OutputPart, PartRun, after, runs, write
from satrap.tools.prepare.recipe import RECIPE, write_recipe

PART_BYTES = 256 << 20
"""Bytes of an input file per output file, unless the number of files is given."""

_READING = ("format", *CSV_KEYS, "join")
"""Keys of data that affect reading."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Content of a prepared folder: path of its recipe, files, rows, bytes before and after."""

    recipe: Path
    files: int
    rows: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """Progress: rows written, bytes of raw files read, and their total; None for compressed text."""

    rows: int
    read: int
    total: int | None


def prepare(
    recipe: Recipe,
    folder: str | Path,
    *,
    files: int | None = None,
    processes: int | None = None,
    ray: str | None = None,
    progress: Callable[[PrepareProgress], object] = lambda _: None,
    notice: Callable[[str], object] = lambda _: None,
) -> Prepared:
    """Write the rows of a recipe's files to `folder` as Parquet files of ids and numbers, with a recipe.

    Training with the new recipe gives the same results as the original, bit for bit if the order of rows is
    the same, that is without shuffle. If the folder has partial output, only the rest is written; the bytes
    are the same.

    Args:
        recipe: recipe with `data.train`, and optionally `validation` and `test`.
        folder: a new folder, or the folder of an interrupted call.
        files: approximate number of files to write; default one per 256 MiB of an input file.
        processes: number of concurrent writers, >= 1; default 1, on Ray the cluster's CPUs.
        ray: address of a Ray cluster whose nodes write the parts, HOST:PORT or "auto"; default: this machine.
            All nodes must see the same files and the same `folder`.
        progress: called for each written file.
        notice: called with each line for the user.

    Raises:
        DataError: data that training would reject, with file and row; an input that has changed, or that a
            node does not see.
        ConfigError: a folder with other content, or that a node does not see; a Ray cluster that is
            unreachable or has no capacity.
    """
    folder = Path(folder)
    plan = _layout(recipe)
    data = _open(recipe, plan)
    inputs = _inputs(recipe, data)
    total = sum(file["size"] for name, file in inputs.items() if file["rows"])
    packed = any(path.endswith(".gz") for path in inputs)
    limit = PART_BYTES if files is None else max(1, -(-total // files))
    with locked(folder, "satrap prepare"):
        manifest = PrepareManifest(folder, _settings(recipe, plan, data, limit), inputs)
        manifest.open()
        remaining = _left(data, manifest, limit, split=ray is not None or (processes or 1) > 1)
        if ray is None:
            written = pool.results(worker, (recipe.source, limit, str(folder)), remaining, processes or 1)
        else:
            written = _on_ray(recipe, limit, manifest, remaining, ray, processes, notice)
        for temporary, part in written:
            manifest.add(temporary, part)
            progress(_progress(manifest.parts, None if packed else total))
        manifest.tidy()
        PrepareManifest(folder, manifest.settings, _inputs(recipe, data)).check(
            inputs, f"remove {folder} and run again while no program writes the inputs"
        )
        _check_rows(data, manifest.parts)
        write_recipe(folder, recipe)
    parts = manifest.parts
    return Prepared(
        folder / RECIPE, len(parts), sum(p.rows for p in parts), total, sum(p.size for p in parts)
    )


def _on_ray(
    recipe: Recipe,
    limit: int,
    manifest: PrepareManifest,
    left: Iterator[PartRun],
    address: str,
    workers: int | None,
    notice: Callable[[str], object],
) -> Iterator[tuple[Path, OutputPart]]:
    return ray_pool.results(
        node_worker,
        (recipe.source, limit, manifest.view()),
        left,
        lambda run, written: after(run, written[1]),
        address=address,
        workers=workers,
        notice=notice,
    )


def _progress(parts: list[OutputPart], total: int | None) -> PrepareProgress:
    return PrepareProgress(sum(part.rows for part in parts), sum(part.read for part in parts), total)


def worker(
    source: RecipeSource, limit: int, folder: str
) -> Callable[[PartRun], Iterator[tuple[Path, OutputPart]]]:
    """Return a function that writes the parts of a run, for a process of `results`."""
    recipe = checked(source)
    plan = _layout(recipe)
    data = _open(recipe, plan)
    return lambda run: write(data[run.key], plan, run, limit, Path(folder))


def node_worker(
    source: RecipeSource, limit: int, view: View
) -> Callable[[PartRun], Iterator[tuple[Path, OutputPart]]]:
    """Return the same as `worker`, on a node; raise `DataError` or `ConfigError` if it sees other files."""
    recipe = checked(source)
    plan = _layout(recipe)
    data = _open(recipe, plan)
    view.check(_settings(recipe, plan, data, limit), _inputs(recipe, data))
    return lambda run: write(data[run.key], plan, run, limit, view.folder)


def _layout(recipe: Recipe) -> OutputLayout:
    split = recipe.sections.data.split
    return layout(recipe.schema(), [split.column] if isinstance(split, TimeSplitKeys) else [])


def _open(recipe: Recipe, plan: OutputLayout) -> dict[str, Dataset]:
    datasets = {part: open_whole(recipe, plan.schema, part) for part in PARTS}
    return {part: dataset for part, dataset in datasets.items() if dataset is not None}


def _files(dataset: Dataset) -> FileSource:
    assert isinstance(dataset.source, FileSource)
    return dataset.source


def _inputs(recipe: Recipe, data: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return name -> size, version and use of each file."""
    rows = {file.path: file for dataset in data.values() for file in _files(dataset).inputs}
    joined = {
        file.path: file
        for join in recipe.sections.data.join
        for file in find_files(recipe.locate(join.source))
    }
    return {name: _facts(file, rows=name in rows) for name, file in {**joined, **rows}.items()}


def _facts(file: File, *, rows: bool) -> dict[str, Any]:
    return {"size": file.size(), "version": file.version(), "rows": rows}


def _settings(recipe: Recipe, plan: OutputLayout, data: Mapping[str, Dataset], limit: int) -> dict[str, Any]:
    """Return everything except the inputs that affects the output, as JSON data."""
    keys = recipe.sections.data.model_dump(mode="json", include=set(_READING))
    return {
        "version": VERSION,
        "pyarrow": pa.__version__,
        "part_bytes": limit,
        "columns": [asdict(output) for output in plan.outputs],
        "schema": _plain(plan.schema.to_dict()),
        "data": keys,
        "files": {part: [file.path for file in _files(d).inputs] for part, d in data.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _left(
    data: Mapping[str, Dataset], manifest: PrepareManifest, limit: int, *, split: bool
) -> Iterator[PartRun]:
    """Yield the remaining runs."""
    for key, dataset in data.items():
        source = _files(dataset)
        for file in range(len(source.inputs)):
            yield from runs(source.single(file), key, file, manifest.done(key, file), limit, split=split)


def _check_rows(data: Mapping[str, Dataset], parts: list[OutputPart]) -> None:
    for key, dataset in data.items():
        if not any(part.key == key for part in parts):
            raise DataError("no rows: the data is empty", where=dataset.source.label, fix="check the files")
