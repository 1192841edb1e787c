"""From files to the text of a recipe."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from satrap.data.columns import as_array
from satrap.data.csv import CsvOptions
from satrap.data.dataset import open_source
from satrap.data.encode import MISSING
from satrap.data.source import Source, check_columns
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.init.alone import auc_alone, one_label
from satrap.init.choose import Features, Lines, add_features, bins_for
from satrap.init.kinds import Decision, decide
from satrap.init.label import Target, choose_label
from satrap.init.names import meaning, names_user, words
from satrap.init.open import open_data
from satrap.init.profile import Column, Profile, profile
from satrap.init.settings import FEW_NUMBERS, is_small, settings, starts_at_mean
from satrap.init.times import not_times, proposals, split_by_time
from satrap.init.write import comment, scalar, section
from satrap.schema import Kind

SUSPICIOUS: dict[Kind, float] = {"binary": 0.99, "multiclass": 0.99, "regression": 0.999}
"""A column that alone has this AUC is taken for a copy of the label. Numbers that go with the label are often
near to it without being a copy."""

MOST_BOTH = 500
"""Columns of a table whose numbers may appear with and without a logarithm."""
_WEIGHTS = {"weight", "weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks of `satrap init`.

    Args:
        data: training files: paths, globs or URLs.
        label: column to predict.
        output: where the recipe will be; paths in it are relative to its folder.
        test: files to judge the model by; default: every tenth row of `data`.
        weight, group: columns of that use.
        time: column of times; the latest rows of `data` are for validation and test.
        drop: columns to leave out.
        keep: columns to use although they look like a copy of the label.
        kind: of the label: binary, regression or multiclass; default by its values.
        positive: values of the label that count as 1.
        threshold: numbers of the label from here on count as 1.
        rows: read only so many rows; default all.
        format: csv, tsv, parquet or arrow; default by the names of the files.
        separator: between the columns of a CSV file; default by its header.
        encoding: of CSV files; default utf-8.
        quote: around values of CSV files that hold separators; default '"', empty: none.
        names: of the columns of CSV files without a line of names.
    """

    data: Sequence[str]
    label: str
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


@dataclass(slots=True)
class Found:
    """The text of a recipe, and how many columns of how many rows it uses and leaves out.

    `copies` are columns among the latter that look like a copy of the label, with the reason.
    """

    text: str
    used: int
    unused: int
    rows: int
    copies: dict[str, str]


def make_recipe(asked: Request, progress: Callable[[int], None] = lambda _: None) -> Found:
    """Read the data once and return a recipe for it.

    Raises `DataError` for data, or a label, that nothing can be learned from, `ConfigError` for columns that
    are not there.
    """
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
    tested = open_source(list(asked.test), format=kind, csv=csv) if asked.test else None
    if tested:
        check_columns([asked.label], tested.names, tested.label)
    twice = [name for name, count in Counter(source.names).items() if count > 1]  # used by nobody
    drop = {*asked.drop, *twice} - {asked.label, asked.time}
    facts = profile(source, asked.label, drop=drop, most=asked.rows, progress=progress)
    target = choose_label(
        facts, asked.label, kind=asked.kind, positive=asked.positive, threshold=asked.threshold
    )
    unused = dict.fromkeys(asked.drop, "as asked for")
    decisions = _decisions(asked, facts, unused)
    copies = _leave_out_copies(asked, facts, target, decisions)
    unused |= {name: f"{why}: a copy, or known only afterwards?" for name, why in copies.items()}
    if tested:
        check_columns(decisions, tested.names, tested.label)
    rows = _training_rows(asked, facts)
    features = _features(facts, target, decisions, rows)
    _check_features(features, source, unused, kept=bool(copies))
    chosen = settings(rows, features.width, target.share)
    times = _times(asked, facts)
    by_time = _by_time(asked, facts, source, times)
    numbers = [name for name in (*decisions, *times) if facts.columns[name].numbers]
    odd = sorted({text for name in numbers for text in facts.columns[name].odd})
    chosen["data"] = _data(asked, csv, kind, odd, by_time if asked.time else None) | chosen["data"]
    lines = [*_head(facts, source), *section("data", chosen.pop("data"))]
    if by_time and not asked.time:
        lines.append(f"  # split: {scalar(by_time)}  # instead, if it is to predict what comes later")
    lines.append("")
    if target.kind != "binary":
        del chosen["training"]["monitor"]  # it is about AUC
    if not any("dim" in keys for keys, _ in features.lines.values()):
        del chosen["embedding"]  # there are no tables
    lines += [*_labels(target, rows), "", *_roles(asked, facts, target, decisions)]
    lines += [*section("features", features.lines), *_left_out(unused), *_of_times(facts, times), ""]
    for name, values in chosen.items():
        lines += [*section(name, values), ""]
    return Found("\n".join(lines), len(decisions), len(unused), facts.rows, copies)


def _check_features(features: Features, source: Source, unused: Mapping[str, str], *, kept: bool) -> None:
    """Refuse data that leaves nothing to learn from; `kept`: whether --keep may help."""
    if not features.lines:
        known = "; of columns known before the label, --keep COLUMN" if kept else ""
        raise DataError(
            "no column is left to learn from",
            where=source.label,
            why="; ".join(f"{name}: {why}" for name, why in list(unused.items())[:4]),
            fix=f"give more columns, or rows{known}",
        )


def _features(facts: Profile, target: Target, decisions: dict[str, Decision], rows: int) -> Features:
    """Return the features of the columns that are used, for so many training rows."""
    found = Features()
    numbers = [name for name, decision in decisions.items() if decision.kind == "number"]
    bins, binned = bins_for(facts.rows, len(decisions), len(numbers))
    if is_small(rows, target.share):
        binned = 0
    best = set(sorted(numbers, key=lambda name: -decisions[name].alone)[:binned])
    both = starts_at_mean(rows, target.share) and len(decisions) <= MOST_BOTH
    for name, decision in decisions.items():
        add_features(found, facts.columns[name], decision, bins=bins if name in best else 0, both=both)
    return found


def _training_rows(asked: Request, facts: Profile) -> int:
    return facts.rows * 9 // 10 if asked.test else facts.rows * 8 // 10


def _check_columns(asked: Request, source: Source) -> None:
    """Raise `ConfigError` for columns that are not there, `DataError` for two of one name that are used."""
    named: dict[str, Sequence[str | None]] = {"--label": [asked.label]}
    named |= {"--drop": asked.drop, "--keep": asked.keep, "--weight": [asked.weight]}
    named |= {"--group": [asked.group], "--time": [asked.time]}
    for option, columns in named.items():
        for column in columns:
            if column is not None and column not in source.names:
                shown = ", ".join(source.names[:12]) + (", ..." if len(source.names) > 12 else "")
                values = [name for name in source.names if re.fullmatch(r"[-+]?\d[\d.,]*|", name)]
                raise ConfigError(
                    f"there is no column {column!r}",
                    where=f"{option}, {source.label}",
                    why="the first line seems to hold values, not names" if values else "",
                    fix="give the names of the columns: --names a,b,c"
                    if values
                    else f"{did_you_mean(column, source.names, cutoff=0.5)}columns: {shown}",
                )
    for name, count in Counter(source.names).items():
        if count > 1 and name and name not in asked.drop:
            raise DataError(
                f"{count} columns are named {name!r}",
                where=source.label,
                why="it is unclear which of them is meant",
                fix=f"give each a name of its own{'' if name == asked.label else f', or --drop {name}'}",
            )


def _decisions(asked: Request, facts: Profile, unused: dict[str, str]) -> dict[str, Decision]:
    """Return what the columns are that are used; write into `unused` why others are not."""
    found: dict[str, Decision] = {}
    for name, column in facts.columns.items():
        if name in (asked.label, asked.weight, *asked.drop):
            continue
        if not name:
            unused[name] = "a feature needs a name of its column"
            continue
        sample = as_array(facts.sample.column(name))
        decision = Decision("time", "a time") if name == asked.time else decide(column, sample)
        if decision.kind == "time":
            unused[name] = "a time: what comes later has other values"
        elif decision.kind == "unused":
            unused[name] = decision.why
        else:
            found[name] = decision
    return found


def _leave_out_copies(
    asked: Request, facts: Profile, target: Target, decisions: dict[str, Decision]
) -> dict[str, str]:
    """Remove the columns that look like a copy of the label, and return why; give others their AUC alone."""
    copies: dict[str, str] = {}
    questions = target.questions(as_array(facts.sample.column(asked.label)))
    limit = SUSPICIOUS[target.kind]
    for name, decision in list(decisions.items()):
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        alone = auc_alone(column, sample, questions[0])
        why = None
        if alone > limit and all(auc_alone(column, sample, question) > limit for question in questions[1:]):
            why = f"it alone tells the label, AUC {alone:.3f}"
        elif target.kind == "binary":
            each = decision.kind == "category" and meaning(name) != "id"
            why = one_label(column, sample, questions[0], each=each, columns=len(decisions))
        if why is None or name in asked.keep:
            decisions[name] = replace(decision, alone=0.5 if math.isnan(alone) else alone)
        else:
            copies[name] = why
    for name in copies:
        del decisions[name]
    return copies


def _times(asked: Request, facts: Profile) -> list[str]:
    """Return the columns of times."""
    names = [name for name in facts.columns if name not in (asked.label, asked.time)]
    found = [n for n in names if decide(facts.columns[n], as_array(facts.sample.column(n))).kind == "time"]
    return [asked.time, *found] if asked.time else found


def _by_time(asked: Request, facts: Profile, source: Source, times: Sequence[str]) -> dict[str, Any] | None:
    """Return a split by the column asked for, or by the first one that holds times; None if there is none."""
    parts = ["validation"] if asked.test else ["validation", "test"]
    for name in times:
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        found = split_by_time(name, sample, parts, column.odd if column.numbers else ())
        if found or not asked.time:
            return found
        wrong, count, first = not_times(source, name, facts.rows)
        if 0 < wrong < count:
            raise DataError(
                f"--time {name}: {wrong:,} of {count:,} values are no times",
                where=first,
                why="times are timestamps, dates, texts such as 2024-01-31 08:05:30, or seconds since 1970",
                fix="correct these values, or leave them empty: rows without a time are for training",
            )
        raise ConfigError(
            f"--time {name}: it has no times, or not more than {len(parts)} different ones",
            why="times are timestamps, dates, texts such as 2024-01-31 08:05:30, or seconds since 1970",
            fix="give another column, or no --time",
        )
    return None


def _data(
    asked: Request, csv: CsvOptions, kind: str, odd: Sequence[str], by_time: dict[str, Any] | None
) -> Lines:
    lines: Lines = {"train": (_paths(asked.data, asked.output), "")}
    split: tuple[dict[str, Any], str]
    if asked.test:
        lines["test"] = (_paths(asked.test, asked.output), "")
    if by_time:
        each = "the last tenth of the rows decides" if asked.test else "the last tenths of the rows are for"
        split = by_time, f"{each} when to stop{'' if asked.test else ' and for the test'}"
    elif asked.test:
        split = {"modulo": 10, "validation": [9]}, "every tenth row decides when to stop"
    else:
        split = (
            {"modulo": 10, "validation": [8], "test": [9]},
            "every tenth row each, for when to stop and for the test",
        )
    lines["format"] = (kind, "")
    lines |= _written(csv)
    if odd:
        lines["missing"] = ([*MISSING, *odd], f"also {', '.join(odd)}: text among numbers")
    lines["split"] = split
    return lines


def _written(csv: CsvOptions) -> Lines:
    """Return how CSV files are written, where it is not the usual way."""
    lines: Lines = {}
    if csv.columns is not None:
        lines["columns"] = (list(csv.columns), "the files have no line of names")
    if csv.separator is not None:
        lines["separator"] = (csv.separator, "")
    if csv.encoding != "utf-8":
        lines["encoding"] = (csv.encoding, "")
    if csv.quote != '"':
        lines["quote"] = (csv.quote or "", "")
    if csv.comment is not None:
        lines["comment"] = (csv.comment, "the first line is no header")
    if csv.decimal != ".":
        lines["decimal"] = (csv.decimal, "numbers are written as 3,14")
    if csv.thousands is not None:
        lines["thousands"] = (csv.thousands, f"numbers are written as 1{csv.thousands}234")
    if csv.strip:
        lines["strip"] = (True, "there are blanks around values")
    return lines


def _paths(sources: Sequence[str], output: str) -> str | list[str]:
    """Return paths as seen from the recipe's folder."""
    folder = Path(output).parent
    found = [s if "://" in s or os.path.isabs(s) else os.path.relpath(s, folder) for s in sources]
    return found[0] if len(found) == 1 else found


def _head(facts: Profile, source: Source) -> list[str]:
    rows = f"{facts.rows:,} rows" + ("" if facts.complete else ", the first ones")
    return [
        comment(f"Written by satrap init from {rows} and {len(source.names)} columns of {source.label}."),
        "# Everything may be changed. satrap config --keys explains the keys.",
        "",
    ]


def _labels(target: Target, rows: int) -> list[str]:
    known: dict[str, Any] = {}
    if starts_at_mean(rows, target.share):
        known = {"mean": float(f"{target.share:.4g}")}
    elif target.kind == "regression" and rows < FEW_NUMBERS:
        known = {"start_at_mean": True}
    keys = scalar({"name": target.column, **target.keys, **known})
    share = "" if target.share is None else f"; {target.share:.3g} of the rows are 1"
    return ["labels:", f"  - {keys}  {comment(target.why + share)}"]


def _roles(asked: Request, facts: Profile, target: Target, decisions: dict[str, Decision]) -> list[str]:
    lines = []
    if asked.weight:
        lines.append(f"weight: {scalar(asked.weight)}")
    for name in () if asked.weight else facts.columns:
        if _WEIGHTS & set(words(name)) and facts.columns[name].numbers and facts.columns[name].low >= 0:
            lines.append(f"# weight: {scalar(name)}  # if it says how much a row counts")
    group = asked.group or _users(facts, decisions)
    if group and target.kind == "binary":
        lines.append(f"group: {scalar(group)}  # AUC is also reported within each of its values")
    return [*lines, ""] if lines else []


def _users(facts: Profile, decisions: dict[str, Decision]) -> str | None:
    for name, decision in decisions.items():
        column: Column = facts.columns[name]
        count = column.distinct.count
        if names_user(name) and decision.kind == "category" and 10 <= count <= column.rows / 5:
            return name
    return None


def _of_times(facts: Profile, times: Sequence[str]) -> list[str]:
    """Return, as comments, features that a recipe may have of columns of times."""
    lines = []
    for name in times:
        column, sample = facts.columns[name], as_array(facts.sample.column(name))
        lines += [f"  # {line}" for line in proposals(name, sample, column.odd if column.numbers else ())]
    return ["  # Of times, if hours, days or the age matter:", *lines] if lines else []


def _left_out(unused: dict[str, str]) -> list[str]:
    return (
        ["  # Left out:", *(f"  #   {name or '(no name)'}: {why}" for name, why in unused.items())]
        if unused
        else []
    )
