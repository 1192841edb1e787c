"""A new training that starts with the weights and rows of another run, as far as they match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.series import newest
from satrap.checkpoint.snapshot import open_checkpoint
from satrap.dense import DENSE_TABLE, DenseState
from satrap.errors import ConfigError
from satrap.runtime.formatting import counted
from satrap.schema import Schema, Table
from satrap.settings.warm_start import WarmStart
from satrap.store import RowChunk, StoreConfig
from satrap.store.row_spec import plan
from satrap.train.schema_checks import feature_changes, other_ids
from satrap.train.state.across_workers import opened_network, shared, told
from satrap.train.state.coordinator import on_holders
from satrap.train.state.training_state import TrainingState

Reasons = dict[str, str]
"""Name -> why it was not taken."""


@dataclass(slots=True)
class WarmStartReport:
    """The weights and rows that a training took from another run, and the others.

    Args:
        url: the checkpoint.
        step: its training step.
        weights: names of the network's tensors that were taken.
        fresh_weights: name of a tensor that starts fresh -> why.
        rows: table -> rows that were taken.
        fresh_tables: tables that start fresh -> why.
        unused: weights and tables of the other run that this training does not have.
        features: feature that is new, dropped or changed -> which of these.
        state: which optimizer state was taken, in words.
    """

    url: str
    step: int
    weights: list[str] = field(default_factory=list)
    fresh_weights: Reasons = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    fresh_tables: Reasons = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    features: dict[str, str] = field(default_factory=dict)
    state: str = "fresh"

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        rows = ", ".join(f"{table} {count:,}" for table, count in self.rows.items())
        yield f"starting from step {self.step:,} of {self.url}"
        yield f"  taken: {counted(len(self.weights), 'weight tensor')}; rows: {rows or 'none'}"
        yield f"  optimizer state: {self.state}"
        fresh = self.fresh_weights | {f"table {name}": why for name, why in self.fresh_tables.items()}
        for title, reasons in (("fresh", fresh), ("features", self.features)):
            if reasons:
                yield f"  {title}: {'; '.join(f'{name} ({why})' for name, why in reasons.items())}"
        if self.unused:
            yield f"  not used: {', '.join(self.unused)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def start_from(
    start: WarmStart, state: TrainingState, tables: Sequence[Table], store: StoreConfig
) -> WarmStartReport:
    """Give a training that has not begun the weights and rows of another run; all workers call this.

    Args:
        start: the run, and whether to take its optimizer state.
        state: state of the training.
        tables: tables of its schema.
        store: settings of its store; tables with rows of a file keep these.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: nothing matches, or the training has begun.
    """
    if state.run.steps or state.started:
        raise ConfigError("the trainer has begun to train", fix="call warm_start before fit")
    workers, schema = state.workers, state.predictor.schema
    place = told(workers, newest(start.url) if workers.rank == 0 else "")
    dense = opened_network(workers, place, whole=state.dense.whole)
    saved = shared(open_checkpoint(place) if workers.rank == 0 else None, workers, dense)
    with reading_settings(place):
        before = Schema.from_dict(saved.settings["schema"])
        report = WarmStartReport(place, int(saved.settings["steps"]))
        report.features = feature_changes(before, schema)
        matching = _matching(saved, state, report)
        optimizer = _optimizer(saved, state, report) if start.state else {}
        kinds = _kinds(saved.settings, tables) if start.state else {}
    state.dense.restore(DenseState(matching, optimizer, partial=True))
    chosen = [table for table in tables if not _fresh(table, before, schema, store, report)]
    load = partial(_load, state, chosen, kinds, report)
    on_holders(state.exchange, workers, "loading rows", load)
    report = WarmStartReport(**told(workers, asdict(report)))
    if not report.weights and not any(report.rows.values()):
        raise ConfigError(
            "nothing of the run to start from matches",
            where=place,
            why="\n".join(report.lines()).partition("\n")[2].strip(),
            fix="train without a warm start, or name a run of the same model and features",
        )
    return report


def _matching(saved: Checkpoint, state: TrainingState, report: WarmStartReport) -> dict[str, Any]:
    """Return the saved tensors that have the name and shape of one of the network."""
    shapes = {name: list(t.shape) for name, t in state.model.state_dict(keep_vars=True).items()}
    there = {name: list(t.shape) for name, t in saved.model.items()}
    report.weights = [name for name, shape in shapes.items() if there.get(name) == shape]
    report.fresh_weights = {
        name: f"{there[name]} there, {shape} here" if name in there else "new"
        for name, shape in shapes.items()
        if there.get(name) != shape
    }
    report.unused = [name for name in there if name not in shapes]
    return {name: saved.model[name] for name in report.weights}


def _optimizer(saved: Checkpoint, state: TrainingState, report: WarmStartReport) -> Mapping[str, Any]:
    """Return the state of the network's optimizer, if it can be taken."""
    there = (saved.settings.get("dense_optimizer") or {}).get("name", "unknown")
    here = (state.settings()["dense_optimizer"] or {}).get("name", "none")
    why = f"the network's is fresh: {there} there, {here} here" if there != here else ""
    if report.fresh_weights or report.unused:
        why = "the network's is fresh, because its weights differ"
    if state.schedule.mode == "async" or not saved.optimizer:
        why = why or "the network's is fresh, because it was not saved or mode is async"
    report.state = f"of rows; {why}" if why else "of rows and network"
    return {} if why else saved.optimizer


def _kinds(settings: Mapping[str, Any], tables: Sequence[Table]) -> dict[str, str]:
    """Return table -> name of its optimizer in the other run."""
    by_table = {name: values.get("optimizer") for name, values in settings.get("tables", {}).items()}
    general = settings["embedding_optimizer"]
    return {table.name: (by_table.get(table.name) or general)["name"] for table in tables}


def _fresh(
    table: Table, before: Schema, schema: Schema, store: StoreConfig, report: WarmStartReport
) -> str | None:
    """Return, and report, why a table cannot have the rows of another run; None if it can."""
    settings = store.tables.get(table.name)
    from_file = settings is not None and settings.rows is not None
    why = "its rows are from a file" if from_file else other_ids(before, schema, table.name)
    if why is not None:
        report.fresh_tables[table.name] = why
    return why


def _load(
    state: TrainingState, tables: Sequence[Table], kinds: Mapping[str, str], report: WarmStartReport
) -> None:
    """Load the rows of the tables, with their optimizer state if `kinds` has its kind."""
    chain = open_chain(report.url)
    known = {table.name for table in tables} | report.fresh_tables.keys()
    report.unused += [f"table {name}" for name in chain.tables if name not in (*known, DENSE_TABLE)]
    for table in tables:
        report.rows[table.name] = 0
        assert table.optimizer is not None
        layout = plan(table.optimizer, table.dim, table.dtype)
        whole = kinds.get(table.name) == table.optimizer.to_dict()["name"]
        if kinds and not whole:
            report.state += f"; of table {table.name} fresh: another optimizer"
        for name, chunk in chain.chunks(table.name):
            if (dim := chunk.weights.shape[1]) != table.dim:
                del report.rows[name]
                report.fresh_tables[name] = f"dim {dim} there, {table.dim} here"
                break
            if not whole or chunk.state.shape[1] != layout.width:
                chunk = RowChunk(name, chunk.ids, chunk.weights, layout.initial_states(len(chunk.ids)))
            state.exchange.rows.load(name, chunk)
            report.rows[name] += len(chunk.ids)
