"""Scoring with a trained model, in bounded memory: metrics of files, and files of predictions."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pyarrow as pa

from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.checkpoint.series import newest
from satrap.config import Recipe
from satrap.data import Dataset
from satrap.data.formats.files import find_files
from satrap.errors import ConfigError, DataError, StoreError
from satrap.exchange import LocalExchange
from satrap.launch.build import store_of
from satrap.launch.datasets import open_part, open_sources
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.network import make_model, own_functions
from satrap.launch.predictions import ENDINGS, Predictions, output_columns, writer_of
from satrap.runtime.formatting import counted
from satrap.runtime.user_code import blaming
from satrap.schema import Schema
from satrap.store import Eviction, Shard, StoreConfig
from satrap.train import Predictor
from satrap.train.predictor import predictor_for, prepare
from satrap.train.ranking.tower_vectors import TowerVectors
from satrap.train.step.loss import prediction_names

SCORING_KEYS = (
    *("embedding.memory", "embedding.eviction", "embedding.tier", "training.device", "serving"),
    *("tables.*.memory", "tables.*.eviction", "training.ranking"),
)
"""Recipe keys that can be overridden for a trained model, because they do not change the model."""

TellShares = Callable[[Mapping[str, float]], object]


def scoring_recipe(folder: RunFolder, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run with overrides; raise ConfigError for a key that would change the model."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(fnmatchcase(key, allowed) or fnmatchcase(key, f"{allowed}.*") for allowed in SCORING_KEYS):
            raise ConfigError(
                f"{key} cannot be changed for a trained model", fix=f"set one of {', '.join(SCORING_KEYS)}"
            )
    return folder.recipe(overrides)


def model_place(folder: RunFolder, recipe: Recipe, step: int | None = None) -> str:
    """Return the place of a run's trained model, or of its newest snapshot if it has not ended.

    Before its first snapshot, it is the newest version of its feed, if any. With `step`, it is the snapshot
    or the feed's version of this step, or `ConfigError` is raised.
    """
    if step is not None:
        return _of_step(folder, recipe, step)
    ended = folder.model.exists() and folder.stopped != "stopped"
    if ended:
        return str(folder.model)
    snapshots, feed = folder.snapshots(recipe), Series(folder.feed_place(recipe))
    if Series(snapshots).latest() is None and (version := feed.latest()) is not None:
        return feed.place(version)
    return newest(snapshots)


def _of_step(folder: RunFolder, recipe: Recipe, step: int) -> str:
    every = [Series(folder.snapshots(recipe)), Series(folder.feed_place(recipe))]
    steps = [series.steps() for series in every]
    for series, available in zip(every, steps, strict=True):
        if step in available:
            return series.place(step)
    newest_steps = ", ".join(str(number) for number in sorted({*steps[0], *steps[1]})[-8:])
    raise ConfigError(
        f"the run has no snapshot or version of step {step:,}",
        where=str(folder),
        fix=f"newest steps: {newest_steps}"
        if newest_steps
        else "omit --step, because the run has only its model",
    )


def load_predictor(folder: RunFolder, recipe: Recipe, place: str | None = None) -> Predictor:
    """Return a predictor with the model of a run, or with its newest snapshot if the run was stopped.

    `place` selects another snapshot. Rows are in memory, within `embedding.memory` and the memory of single
    tables, and in `embedding.tier`. Rows that do not fit raise ConfigError.
    """
    store = _to_score(store_of(recipe))
    return _loaded(folder, recipe, place, LocalExchange, store, stateless=store.tier is None)


def load_served(
    folder: RunFolder,
    recipe: Recipe,
    place: str | None = None,
    exchange: Callable[[Shard], LocalExchange] = LocalExchange,
    *,
    empty: bool = False,
) -> Predictor:
    """Return a predictor as `load_predictor`, but for a server; for `exchange` see `predictor_for`.

    Rows are within `serving.memory` and in `serving.tier`, if the recipe sets them. `empty`: the exchange
    holds no rows.
    """
    keys = recipe.sections.serving
    if empty:
        store = replace(_to_score(store_of(recipe)), memory=None, tier=None, eviction=None)
    elif keys.memory is None and keys.tier is None:
        store = _to_score(store_of(recipe))
        return _loaded(folder, recipe, place, exchange, store, stateless=store.tier is None)
    else:
        tier = keys.tier
        eviction = None if tier is None else Eviction("lfu")  # see benchmarks/serving: 1.7 points better
        store = replace(_to_score(store_of(recipe)), memory=keys.memory, tier=tier, eviction=eviction)
        tables = {name: replace(table, memory=None, eviction="store") for name, table in store.tables.items()}
        store = replace(store, tables=tables)
    return _loaded(folder, recipe, place, exchange, store, stateless=True)


def _to_score(store: StoreConfig) -> StoreConfig:
    """Return store settings under which no row is lost; the rows are in RAM."""
    store = replace(store, device="cpu")
    if store.tier is not None and not store.tier.in_memory:
        return store
    tables = {name: replace(table, eviction=None) for name, table in store.tables.items()}
    if store.tier is not None:  # host memory has all rows, and the budgets are for a GPU
        tables = {name: replace(table, memory=None) for name, table in tables.items()}
        store = replace(store, tier=None, memory=None)
    return replace(store, eviction=None, tables=tables)


def _loaded(
    folder: RunFolder,
    recipe: Recipe,
    place: str | None,
    exchange: Callable[[Shard], LocalExchange],
    store: StoreConfig,
    *,
    stateless: bool,
) -> Predictor:
    try:
        predictor = predictor_for(
            exchange,
            place or model_place(folder, recipe),
            partial(make_model, recipe) if ("model", "class") in recipe.own_code() else None,
            device=prepare(recipe.sections.training.device, None),
            store=store,
            stateless=stateless,
            metrics=tuple(own_functions(recipe, "metrics").values()),
            ranking=recipe.sections.training.ranking,
        )
    except StoreError as error:
        raise _no_room(folder, error.what) from error
    lost = sum(table.evicted for table in predictor.statistics().tables.values())
    if lost:
        predictor.close()
        raise _no_room(folder, f"no room for {counted(lost, 'row')}")
    return predictor


def _no_room(folder: RunFolder, why: str) -> ConfigError:
    return ConfigError(
        "the rows of the trained model do not fit",
        where=str(folder.model),
        why=why,
        fix="raise the limits: --set embedding.memory=SIZE, or --set "
        "'embedding.tier={path: FOLDER, size: SIZE}'",
    )


def unseen(predictor: Predictor) -> dict[str, float]:
    """Return the share of requested ids without a row, by table.

    An id counts once per batch. It has no row if training never saw it, did not admit it, or evicted it.
    """
    statistics = predictor.statistics()
    return {table: statistics.unseen[table] / ids for table, ids in statistics.peeked.items() if ids}


def evaluate(
    folder: RunFolder,
    sources: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    shares: TellShares = lambda _: None,
    notice: Callable[[str], object] = lambda _: None,
    step: int | None = None,
) -> dict[str, float]:
    """Return the metrics of a trained model; call `shares` with the share of unseen ids by table.

    The sources are files with labels, relative to the current folder; default the recipe's test rows, else
    its validation rows. Overrides are `key=value` strings for keys of `SCORING_KEYS`. `notice` is called with
    a line about the scored rows, and with a warning if the model was trained on some of them. For `step` see
    `model_place`.
    """
    recipe = scoring_recipe(folder, overrides)
    with closing(load_predictor(folder, recipe, model_place(folder, recipe, step))) as predictor:
        rows = _rows(recipe, predictor.schema, sources, notice)
        if rows is None:
            raise ConfigError(
                "the run's recipe has no test or validation rows",
                where=str(folder),
                fix="give the rows: --input FILE",
            )
        rank_items(recipe, predictor, partial(open_part, recipe, predictor.schema, "train"), None)
        with blaming("your own code failed"):
            metrics = predictor.evaluate(rows)
        shares(unseen(predictor))
        return metrics


def rank_items(recipe: Recipe, predictor: Predictor, rows: Callable[[], object], evaluated: object) -> None:
    """Prepare the ranking metrics of some evaluated rows, if there are ranking metrics.

    All items are listed in `data.items`, else they are the items of training rows, which `rows` returns, and
    from which the items that a user has seen may also be needed.
    """
    sources = recipe.sections.data.items
    if predictor.lists.of_items and sources is not None:
        schema = TowerVectors(predictor, "item").schema
        items = open_sources(recipe, schema, [recipe.locate(source) for source in sources])
        predictor.lists.rank_among(items)
    if predictor.lists.needs_training_rows:
        predictor.lists.trained_on(rows())
    predictor.lists.prepare(evaluated)


def _rows(
    recipe: Recipe, schema: Schema, sources: Sequence[str], notice: Callable[[str], object]
) -> Dataset | None:
    """Return the rows to evaluate, None if the recipe has none, and print their files."""
    keys = recipe.sections.data
    if sources:
        notice(f"scoring all rows of {', '.join(sources)}")
        _warn_of_training_rows(recipe, sources, notice)
        return open_sources(recipe, schema, sources)
    for part in ("test", "validation"):
        if (rows := open_part(recipe, schema, part)) is not None:
            files = ", ".join(map(recipe.locate, getattr(keys, part) or keys.train or ()))
            notice(f"scoring the {part} rows of the recipe: {files}")
            return rows
    return None


def _warn_of_training_rows(recipe: Recipe, sources: Sequence[str], notice: Callable[[str], object]) -> None:
    inputs = {os.path.realpath(file.path) for file in find_files(sources)}
    try:
        train = find_files([recipe.locate(source) for source in recipe.sections.data.train or ()])
    except DataError:  # there are no training files, or they are on another machine
        return
    if same := [file.name for file in train if os.path.realpath(file.path) in inputs]:
        notice(
            f"warning: the model was trained on rows of {', '.join(same)}\n"
            "  why it matters: metrics on training rows are too optimistic\n"
            "  what to do: use other files, or run satrap evaluate without --input for the test rows"
        )


def predict(
    folder: RunFolder,
    sources: Sequence[str],
    output: str | Path,
    overrides: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    shares: TellShares = lambda _: None,
    step: int | None = None,
) -> int:
    """Score files with a trained model; return the number of rows.

    The output, a new file ending in .parquet, .csv or .csv.gz, has the input's columns and the predictions:
    `<label>_probability` for a binary label, `<label>_probability_<class>` per class for a multiclass label,
    and `<label>_prediction` for a regression label. It appears under its name only when it is complete.

    Args:
        folder: the run folder.
        sources: files, relative to the current folder; labels are not needed.
        output: the file to write.
        overrides: as for `evaluate`.
        columns: the input's columns to write, in this order; default all. Missing columns of a file are
            empty.
        shares: as for `evaluate`.
        step: see `model_place`.
    """
    target = checked_output(Path(output), ENDINGS)
    partial = target.with_name(f".{target.name}.partial")
    recipe = scoring_recipe(folder, overrides)
    predictor = load_predictor(folder, recipe, model_place(folder, recipe, step))
    try:
        rows = open_sources(recipe, predictor.schema.without_labels(), sources)
        names = {
            name: pa.float64() if label.kind == "regression" else pa.float32()
            for label in predictor.schema.labels
            for name in prediction_names(label)
        }
        planned = output_columns(rows.schemas(), names, columns)
        with blaming("your own code failed"), writer_of(partial, planned) as writer:
            for table, values in scored_tables(predictor, rows, list(planned.inputs)):
                writer.write(table, values)
        if writer.rows == 0:
            raise DataError("the input has no rows", fix="give files with at least one row")
        os.replace(partial, target)
        shares(unseen(predictor))
        return writer.rows
    finally:
        predictor.close()
        partial.unlink(missing_ok=True)


def checked_output(output: Path, endings: tuple[str, ...]) -> Path:
    """Return the path of a new file; raise `ConfigError` if it exists or does not end in one of `endings`."""
    if not output.name.endswith(endings):
        raise ConfigError(
            f"the format of the output {output.name!r} is unknown",
            fix=f"use a name that ends in one of {', '.join(endings)}",
        )
    if output.exists():
        raise ConfigError(
            "the output file already exists", where=str(output), fix="choose another name, or remove it"
        )
    if not output.parent.is_dir():
        raise ConfigError(
            "the folder of the output does not exist", where=str(output.parent), fix="create the folder first"
        )
    return output


def scored_tables(
    predictor: Predictor, rows: Dataset, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, Predictions]]:
    """Yield the available columns of the input and the predictions, in the order of the data.

    The predictor reads a few batches ahead.
    """
    waiting: deque[pa.Table] = deque()

    def batches() -> Iterator[Batch]:
        for table, batch in rows.tables_and_batches(columns):
            waiting.append(table)
            yield batch

    for predictions in predictor.predict_batches(batches()):
        yield waiting.popleft(), predictions
