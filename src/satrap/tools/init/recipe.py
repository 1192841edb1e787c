"""Generation of a recipe's text from data files."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from satrap.data.dataset import open_source
from satrap.data.encode.encoder import MISSING
from satrap.data.formats.columns import as_array
from satrap.data.formats.csv import CsvOptions
from satrap.data.source import Source, check_columns
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.runtime.cuda import CudaDevice
from satrap.schema import Kind
from satrap.store.gpu.budget import INDEX_BYTES
from satrap.tools.init.choose import Features, Lines, add_features, bins_for
from satrap.tools.init.interactions import MOSTLY_NEW, SOME_NEW, find_interactions, implicit_label, new_users
from satrap.tools.init.kinds import Decision, decide
from satrap.tools.init.label import LabelChoice, choose_label
from satrap.tools.init.leakage import auc_alone, one_label
from satrap.tools.init.names import meaning, names_user, words
from satrap.tools.init.open import open_data
from satrap.tools.init.profile import Column, Profile, profile
from satrap.tools.init.settings import FEW_NUMBERS, is_small, on_gpu, settings, starts_at_mean, towers
from satrap.tools.init.times import not_times, proposals, split_by_time
from satrap.tools.init.trial import LEAST_ROWS, MOST_ROWS, CountsTrial, add_counts, candidates, tried
from satrap.tools.init.write import comment, scalar, section

SUSPICIOUS: dict[Kind, float] = {"binary": 0.99, "multiclass": 0.99, "regression": 0.999}
"""AUC above which a single column is considered a copy of the label. Numbers that correlate with the label
often come close without being a copy."""

MOST_BOTH = 500
"""Most columns of data whose numbers may be used both with and without a logarithm."""
_WEIGHTS = {"weight", "weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """Options of `satrap init`.

    Args:
        data: training files: paths, globs or URLs.
        label: column to predict; None: each row is a choice of an item, see `item`.
        item: column of the items that users chose; only without a label.
        user: column of the users who chose them; default none, if other columns describe the user.
        output: path of the recipe; paths in the recipe are relative to its folder.
        test: test files; default: every tenth row of `data`.
        weight, group: columns for these roles.
        time: column of times; the latest rows of `data` become validation and test rows. With `item`, default
            the first column of times.
        drop: columns to exclude.
        keep: columns to use even if they look like a copy of the label.
        kind: kind of the label: binary, regression or multiclass; default: inferred from its values.
        positive: values of the label that mean 1.
        threshold: numbers of the label from here on mean 1.
        rows: maximum number of rows to read; default all.
        format: csv, tsv, parquet or arrow; default: by file name.
        separator: column separator of CSV files; default: detected from the header.
        encoding: of CSV files; default utf-8.
        quote: character around values of CSV files that contain separators; default '"', empty: none.
        names: column names of CSV files without a header line.
        trial: train shortly with and without counts and mean labels of ids, to decide about them; only with a
            label.
        cuda: a GPU that the recipe's comments propose; default none.
    """

    data: Sequence[str]
    label: str | None = None
    item: str | None = None
    user: str | None = None
    output: str = "recipe.yaml"
    test: Sequence[str] = ()
    weight: str | None = None
    group: str | None = None
    time: str | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    kind: Kind | None = None
    positive: Sequence[str] = ()
    threshold: float | None = None
    rows: int | None = None
    format: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    quote: str = '"'
    names: Sequence[str] = ()
    trial: bool = True
    cuda: CudaDevice | None = None


@dataclass(slots=True)
class DraftRecipe:
    """The text of a recipe, and the numbers of used and unused columns and of rows.

    `copies` are unused columns that look like a copy of the label, with the reason. `trial` is the result of
    trying counts and mean labels. `notes` are facts about the data that limit the metrics.
    """

    text: str
    used: int
    unused: int
    rows: int
    copies: dict[str, str]
    trial: CountsTrial | None = None
    notes: Sequence[str] = ()


def make_recipe(asked: InitRequest, progress: Callable[[int], None] = lambda _: None) -> DraftRecipe:
    """Read the data once and return a recipe for it; with columns of ids, also train shortly on a sample.

    Raises `DataError` for data, or a label, that cannot be learned from, `ConfigError` for columns that do
    not exist, and unless there is either a label or a column of items.
    """
    _check_asked(asked)
    read = _read(asked, progress)
    return _of_label(asked, read) if asked.item is None else _of_choices(asked, asked.item, read)


@dataclass(slots=True)
class _Read:
    """The data, facts about it, kinds of the used columns, and why others are unused."""

    source: Source
    csv: CsvOptions
    kind: str
    facts: Profile
    tested: Source | None
    decisions: dict[str, Decision]
    unused: dict[str, str]

    def check_test(self) -> None:
        """Raise `DataError` for a used column that the test files lack."""
        if self.tested:
            check_columns(self.decisions, self.tested.names, self.tested.label)

    def odd(self, times: Sequence[str]) -> list[str]:
        """Return the texts among numbers and times, which mean missing."""
        numbers = [name for name in (*self.decisions, *times) if self.facts.columns[name].numbers]
        return sorted({text for name in numbers for text in self.facts.columns[name].odd})


def _read(asked: InitRequest, progress: Callable[[int], None]) -> _Read:
    source, csv, kind = open_data(
        asked.data,
        asked.format,
        asked.separator,
        asked.encoding,
        quote=asked.quote,
        names=asked.names,
        drop=asked.drop,
    )
    _check_columns(asked, source)
    roles = {name for name in (asked.label, asked.item, asked.user) if name is not None}
    tested = open_source(list(asked.test), format=kind, csv=csv) if asked.test else None
    if tested:
        check_columns(roles, tested.names, tested.label)
    twice = [name for name, count in Counter(source.names).items() if count > 1]  # ambiguous, so unused
    drop = {*asked.drop, *twice} - {*roles, asked.time}
    facts = profile(source, asked.label, drop=drop, most=asked.rows, progress=progress)
    unused = dict.fromkeys(asked.drop, "as requested")
    return _Read(source, csv, kind, facts, tested, _decisions(asked, facts, unused), unused)


def _of_label(asked: InitRequest, read: _Read) -> DraftRecipe:
    """Return a recipe that predicts a label."""
    facts, decisions, unused = read.facts, read.decisions, read.unused
    assert asked.label is not None
    target = choose_label(
        facts, asked.label, kind=asked.kind, positive=asked.positive, threshold=asked.threshold
    )
    copies = _leave_out_copies(asked.label, asked.keep, facts, target, decisions)
    unused |= {name: f"{why}: a copy of the label, or known only after it?" for name, why in copies.items()}
    read.check_test()
    rows = _training_rows(asked, facts)
    features = _features(facts, target, decisions, rows)
    _check_features(features, read.source, unused, kept=bool(copies))
    times = _times(asked, facts)
    by_time = _by_time(asked, facts, read.source, times)
    data = _data(asked, read.csv, read.kind, read.odd(times), by_time if asked.time else None)
    group = (asked.group or _users(facts, decisions)) if target.kind == "binary" else None
    split = [f"  # split: {scalar(by_time)}  # instead, if the model predicts the future"]
    parts = _Parts(
        target,
        split if by_time and not asked.time else [],
        _roles(asked, facts, group, "AUC is also reported within each of its values"),
        [*_left_out(unused), *_of_times(facts, times)],
        weighted=asked.weight is not None,
    )
    trial = _trial(asked, facts, decisions, parts, data, features)
    if trial is not None and trial.useful:
        add_counts(features, trial.columns, f"training rows of the value; {trial}")
    elif trial is not None:
        parts.left_out.insert(0, f"  {comment(f'Counts and mean labels of ids are not used: {trial}')}")
    text = _text(asked, read, features, parts.lines(data, features, rows))
    return DraftRecipe(text, len(decisions), len(unused), facts.rows, copies, trial)


def _of_choices(asked: InitRequest, item: str, read: _Read) -> DraftRecipe:
    """Return a recipe that finds the items that a user would choose; each row is such a choice."""
    facts, decisions, unused = read.facts, read.decisions, read.unused
    choices = find_interactions(facts, decisions, unused, user=asked.user, item=item, keep=asked.keep)
    read.check_test()
    features = choices.features(facts, decisions)
    times = _times(asked, facts)
    by_time = _by_time(asked, facts, read.source, times)
    new = new_users(facts, asked.user, by_time) if by_time else 0.0
    rather = new > MOSTLY_NEW and not asked.time
    data = _data(asked, read.csv, read.kind, read.odd(times), None if rather else by_time)
    notes, split = [], []
    if new > SOME_NEW:
        notes = [
            f"{new:.0%} of the last rows have a {asked.user} without earlier rows, so its row is untrained"
        ]
        split = [f"  {comment(notes[0])}"]
    if rather:
        notes[0] += "; the recipe does not split by time"
        split.append(f"  # split: {scalar(by_time)}  # instead, to test new users")
    parts = _Parts(
        implicit_label(item, read.source.names),
        split,
        _roles(asked, facts, asked.group or asked.user, "one list of items for each of its values"),
        [*choices.in_order(facts, decisions), *_left_out(unused), *_of_times(facts, times)],
    )
    rows = _training_rows(asked, facts)
    distinct = facts.columns[item].distinct.count
    chosen = towers(rows, distinct, choices.items(features), choices.excluded)
    text = _text(asked, read, features, parts.lines(data, features, rows, chosen))
    return DraftRecipe(text, len(decisions), len(unused), facts.rows, {}, notes=notes)


def _text(asked: InitRequest, read: _Read, features: Features, lines: Sequence[str]) -> str:
    lines = [*_head(read.facts, read.source), *lines]
    if asked.cuda is not None:
        lines += [comment(on_gpu(asked.cuda, table_bytes(features, read.facts))), ""]
    return "\n".join(lines)


@dataclass(slots=True)
class _Parts:
    """Parts of a recipe that do not depend on data files and features."""

    target: LabelChoice
    split: list[str]
    roles: list[str]
    left_out: list[str]
    weighted: bool = False

    def lines(
        self, data: Lines, features: Features, rows: int, chosen: dict[str, Lines] | None = None
    ) -> list[str]:
        """Return the lines of a recipe with these data files and features.

        Args:
            data: the data files.
            features: the features.
            rows: training rows.
            chosen: the other sections; default by the rows, the width and the label.
        """
        if chosen is None:
            chosen = settings(rows, features.width, self.target.share)
        if self.target.kind != "binary":
            del chosen["training"]["monitor"]  # the default concerns AUC
        if not any("dim" in keys for keys, _ in features.lines.values()):
            del chosen["embedding"]  # no tables
        lines = [*section("data", data | chosen.pop("data")), *self.split, ""]
        lines += [*_labels(self.target, rows, weighted=self.weighted), "", *self.roles]
        lines += [*section("features", features.lines), *self.left_out, ""]
        for name, values in chosen.items():
            lines += [*section(name, values), ""]
        return lines


def _trial(
    asked: InitRequest,
    facts: Profile,
    decisions: dict[str, Decision],
    parts: _Parts,
    data: Lines,
    features: Features,
) -> CountsTrial | None:
    """Try counts and mean labels of ids on the sample; None if nothing speaks for them, or rows are few."""
    sample, target = facts.sample, parts.target
    columns = candidates(facts.columns, decisions)
    few = sample.num_rows < LEAST_ROWS or is_small(sample.num_rows, target.share)
    if not asked.trial or target.kind != "binary" or few or not columns:
        return None
    roles = asked.label, asked.weight, asked.group, asked.time
    names = {name for name in (*roles, *decisions) if name in sample.column_names}
    drawn = np.sort(np.random.default_rng(0).permutation(sample.num_rows)[:MOST_ROWS])
    sample, place = sample.select(sorted(map(str, names))).take(drawn), facts.numbers[drawn] % 10
    files = {"train": sample}
    if not asked.time:
        validation = 9 if asked.test else 8
        train = (place != validation) & ((place != 9) | bool(asked.test))
        files = {"train": sample.filter(train), "validation": sample.filter(place == validation)}
    same = {key: data[key] for key in ("missing", *(["split"] if asked.time else [])) if key in data}

    def compose(names: dict[str, str], features: Features) -> str:
        lines: Lines = {part: (name, "") for part, name in names.items()}
        return "\n".join(parts.lines(lines | same, features, files["train"].num_rows))

    counted = replace(features, lines=dict(features.lines))
    add_counts(counted, columns, "")
    return replace(tried(columns, compose, files, features, counted), part=len(drawn) / facts.rows)


def _check_features(features: Features, source: Source, unused: Mapping[str, str], *, kept: bool) -> None:
    """Raise `DataError` if no feature remains; `kept`: whether --keep may help."""
    if not features.lines:
        keep_hint = "; use --keep COLUMN for a column that is known before the label" if kept else ""
        raise DataError(
            "no usable column remains",
            where=source.label,
            why="; ".join(f"{name}: {why}" for name, why in list(unused.items())[:4]),
            fix=f"give more columns or rows{keep_hint}",
        )


def _features(facts: Profile, target: LabelChoice, decisions: dict[str, Decision], rows: int) -> Features:
    """Return the features of the used columns, for a number of training rows."""
    features = Features()
    numbers = [name for name, decision in decisions.items() if decision.kind == "number"]
    bins, binned = bins_for(facts.rows, len(decisions), len(numbers))
    if is_small(rows, target.share):
        binned = 0
    best = set(sorted(numbers, key=lambda name: -decisions[name].alone)[:binned])
    both = starts_at_mean(rows, target.share) and len(decisions) <= MOST_BOTH
    for name, decision in decisions.items():
        add_features(features, facts.columns[name], decision, bins=bins if name in best else 0, both=both)
    return features


def table_bytes(features: Features, facts: Profile) -> int:
    """Return the bytes on a GPU of one row per value: weights, sums of Adagrad, index."""
    return sum(
        facts.columns[keys.get("column", name)].distinct.count * (8 * keys["dim"] + INDEX_BYTES)
        for name, (keys, _) in features.lines.items()
        if "dim" in keys
    )


def _training_rows(asked: InitRequest, facts: Profile) -> int:
    return facts.rows * 9 // 10 if asked.test else facts.rows * 8 // 10


def _check_asked(asked: InitRequest) -> None:
    """Raise `ConfigError` unless there is either a label or a column of items."""
    if (asked.label is None) == (asked.item is None):
        which = "--label or --item" if asked.label is None else "one of --label and --item"
        raise ConfigError(
            f"satrap init needs {which}",
            why="it predicts a label, or finds items for users by their earlier choices",
            fix="add --label COL for a column to predict, or --user COL --item COL for a log of choices",
        )
    if asked.user is not None and asked.user == asked.item:
        raise ConfigError(f"--user and --item are both {asked.item!r}", fix="give two different columns")
    label = {"--kind": asked.kind, "--positive": asked.positive, "--threshold": asked.threshold}
    other = [name for name, value in label.items() if value not in (None, ())] if asked.item else []
    if other or (asked.user and not asked.item):
        raise ConfigError(
            f"{other[0]} needs --label" if other else "--user needs --item",
            why="without a label, every row counts as a 1" if other else "with --label, users are a feature",
            fix="remove it" if other else "remove it, or use --item COL instead of --label",
        )


def _check_columns(asked: InitRequest, source: Source) -> None:
    """Raise `ConfigError` for a column that does not exist, `DataError` for duplicate names in use."""
    named: dict[str, Sequence[str | None]] = {"--label": [asked.label]}
    named |= {"--item": [asked.item], "--user": [asked.user]}
    named |= {"--drop": asked.drop, "--keep": asked.keep, "--weight": [asked.weight]}
    named |= {"--group": [asked.group], "--time": [asked.time]}
    for option, columns in named.items():
        for column in columns:
            if column is not None and column not in source.names:
                shown = ", ".join(source.names[:12]) + (", ..." if len(source.names) > 12 else "")
                values = [name for name in source.names if re.fullmatch(r"[-+]?\d[\d.,]*|", name)]
                raise ConfigError(
                    f"column {column!r} does not exist",
                    where=f"{option}, {source.label}",
                    why="the first line seems to contain values, not names" if values else "",
                    fix="give the column names: --names a,b,c"
                    if values
                    else f"{did_you_mean(column, source.names, cutoff=0.5)}use one of the columns: {shown}",
                )
    for name, count in Counter(source.names).items():
        if count > 1 and name and name not in asked.drop:
            raise DataError(
                f"{count} columns have the name {name!r}",
                where=source.label,
                why="the name is ambiguous",
                fix=f"give each column a unique name{'' if name == asked.label else f', or --drop {name}'}",
            )


def _decisions(asked: InitRequest, facts: Profile, unused: dict[str, str]) -> dict[str, Decision]:
    """Return the kinds of the used columns; add the reasons for the others to `unused`."""
    decisions: dict[str, Decision] = {}
    for name, column in facts.columns.items():
        if name in (asked.label, asked.weight, *asked.drop):
            continue
        if not name:
            unused[name] = "the column has no name"
            continue
        sample = as_array(facts.sample.column(name))
        decision = Decision("time", "a time") if name == asked.time else decide(column, sample)
        if decision.kind == "time":
            unused[name] = "a time: later rows have other values"
        elif decision.kind == "unused":
            unused[name] = decision.why
        else:
            decisions[name] = decision
    return decisions


def _leave_out_copies(
    label: str, keep: Sequence[str], facts: Profile, target: LabelChoice, decisions: dict[str, Decision]
) -> dict[str, str]:
    """Remove columns that look like a copy of the label and return the reasons; set `alone` of the others."""
    copies: dict[str, str] = {}
    questions = target.questions(as_array(facts.sample.column(label)))
    limit = SUSPICIOUS[target.kind]
    for name, decision in list(decisions.items()):
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        alone = auc_alone(column, sample, questions[0])
        why = None
        if alone > limit and all(auc_alone(column, sample, question) > limit for question in questions[1:]):
            why = f"it alone predicts the label, AUC {alone:.3f}"
        elif target.kind == "binary":
            each = decision.kind == "category" and meaning(name) != "id"
            why = one_label(column, sample, questions[0], each=each, columns=len(decisions))
        if why is None or name in keep:
            decisions[name] = replace(decision, alone=0.5 if math.isnan(alone) else alone)
        else:
            copies[name] = why
    for name in copies:
        del decisions[name]
    return copies


def _times(asked: InitRequest, facts: Profile) -> list[str]:
    """Return the columns of times."""
    names = [name for name in facts.columns if name not in (asked.label, asked.time)]
    times = [n for n in names if decide(facts.columns[n], as_array(facts.sample.column(n))).kind == "time"]
    return [asked.time, *times] if asked.time else times


def _by_time(
    asked: InitRequest, facts: Profile, source: Source, times: Sequence[str]
) -> dict[str, Any] | None:
    """Return a split by the requested column, or by the first column of times; None if there is none."""
    parts = ["validation"] if asked.test else ["validation", "test"]
    for name in times:
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        split = split_by_time(name, sample, parts, column.odd if column.numbers else ())
        if split or not asked.time:
            return split
        wrong, count, first = not_times(source, name, facts.rows)
        if 0 < wrong < count:
            raise DataError(
                f"--time {name}: {wrong:,} of {count:,} values are not times",
                where=first,
                why="times are timestamps, dates, texts such as 2024-01-31 08:05:30, or seconds since 1970",
                fix="correct these values, or leave them empty: rows without a time are training rows",
            )
        raise ConfigError(
            f"--time {name}: the column has no times, or at most {len(parts)} different ones",
            why="times are timestamps, dates, texts such as 2024-01-31 08:05:30, or seconds since 1970",
            fix="choose another column, or remove --time",
        )
    return None


def _data(
    asked: InitRequest, csv: CsvOptions, kind: str, odd: Sequence[str], by_time: dict[str, Any] | None
) -> Lines:
    lines: Lines = {"train": (_paths(asked.data, asked.output), "")}
    split: tuple[dict[str, Any], str]
    if asked.test:
        lines["test"] = (_paths(asked.test, asked.output), "")
    if by_time:
        each = "last tenth of the rows," if asked.test else "last two tenths of the rows,"
        split = by_time, f"{each} for early stopping{'' if asked.test else ' and the test'}"
    elif asked.test:
        split = {"modulo": 10, "validation": [9]}, "every tenth row, for early stopping"
    else:
        split = (
            {"modulo": 10, "validation": [8], "test": [9]},
            "every tenth row each, for early stopping and the test",
        )
    lines["format"] = (kind, "")
    lines |= _written(csv)
    if odd:
        lines["missing"] = ([*MISSING, *odd], f"including {', '.join(odd)}, texts among numbers")
    lines["split"] = split
    return lines


def _written(csv: CsvOptions) -> Lines:
    """Return the CSV options that differ from the defaults."""
    lines: Lines = {}
    if csv.columns is not None:
        lines["columns"] = (list(csv.columns), "the files have no header line")
    if csv.separator is not None:
        lines["separator"] = (csv.separator, "")
    if csv.encoding != "utf-8":
        lines["encoding"] = (csv.encoding, "")
    if csv.quote != '"':
        lines["quote"] = (csv.quote or "", "")
    if csv.comment is not None:
        lines["comment"] = (csv.comment, "the first line is not a header")
    if csv.decimal != ".":
        lines["decimal"] = (csv.decimal, "numbers look like 3,14")
    if csv.thousands is not None:
        lines["thousands"] = (csv.thousands, f"numbers look like 1{csv.thousands}234")
    if csv.strip:
        lines["strip"] = (True, "values have blanks around them")
    return lines


def _paths(sources: Sequence[str], output: str) -> str | list[str]:
    """Return paths relative to the recipe's folder."""
    folder = Path(output).parent
    paths = [s if "://" in s or os.path.isabs(s) else os.path.relpath(s, folder) for s in sources]
    return paths[0] if len(paths) == 1 else paths


def _head(facts: Profile, source: Source) -> list[str]:
    rows = f"{facts.rows:,} rows" + ("" if facts.complete else " (the first)")
    return [
        comment(f"Written by satrap init from {rows} and {len(source.names)} columns of {source.label}."),
        "# Edit anything here. satrap config --keys explains the keys.",
        "",
    ]


def _labels(target: LabelChoice, rows: int, *, weighted: bool) -> list[str]:
    start: dict[str, Any] = {}
    if starts_at_mean(rows, target.share) and not weighted:  # the share does not know the weights
        start = {"mean": float(f"{target.share:.4g}")}
    elif target.kind == "regression" and rows < FEW_NUMBERS:
        start = {"start_at_mean": True}
    keys = scalar({"name": target.column, **target.keys, **start})
    share = "" if target.share is None else f"; {target.share:.3g} of the rows are 1"
    return ["labels:", f"  - {keys}  {comment(target.why + share)}"]


def _roles(asked: InitRequest, facts: Profile, group: str | None, why: str) -> list[str]:
    lines = []
    if asked.weight:
        lines.append(f"weight: {scalar(asked.weight)}")
    for name in () if asked.weight else facts.columns:
        if _WEIGHTS & set(words(name)) and facts.columns[name].numbers and facts.columns[name].low >= 0:
            lines.append(f"# weight: {scalar(name)}  # if this is the weight of a row")
    if group:
        lines.append(f"group: {scalar(group)}  {comment(why)}")
    return [*lines, ""] if lines else []


def _users(facts: Profile, decisions: dict[str, Decision]) -> str | None:
    for name, decision in decisions.items():
        column: Column = facts.columns[name]
        count = column.distinct.count
        if names_user(name) and decision.kind == "category" and 10 <= count <= column.rows / 5:
            return name
    return None


def _of_times(facts: Profile, times: Sequence[str]) -> list[str]:
    """Return possible features from columns of times, as comments."""
    lines = []
    for name in times:
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        lines += [f"  # {line}" for line in proposals(name, sample, column.odd if column.numbers else ())]
    return ["  # From times, if hour, weekday or age matters:", *lines] if lines else []


def _left_out(unused: dict[str, str]) -> list[str]:
    lines = (f"{' '.join(name.split()) or '(no name)'}: {why}" for name, why in unused.items())
    return ["  # Unused columns:", *(f"  #   {line}" for line in lines)] if unused else []
