"""The sections of the report with tables and text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from satrap.runtime.formatting import METRIC_NAMES, duration, metric_name, quality, size
from satrap.tools.report_page.element import Content, Html, element
from satrap.tools.report_page.run import RunReport

ENDINGS = {
    "epochs": "all epochs done",
    "steps": "training.steps reached",
    "patience": "early: validation no longer improved",
    "stopped": "stopped; can be resumed",
    "interrupted": "interrupted; cannot be resumed",
}
"""`stopped` of a run's metrics -> how it ended."""

LOWER_IS_BETTER = ("loss", "logloss", "ne", "rmse", "mae")
NEITHER = ("calibration",)

TRAFFIC = {
    "distinct_ratio": "unique ids / ids",
    "lookup_wait_seconds": "seconds waiting for rows",
    "lookup_seconds": "mean seconds of a lookup",
    "push_seconds": "mean seconds of an update",
    "sent_bytes_per_sample": "bytes sent per sample",
    "received_bytes_per_sample": "bytes received per sample",
    "rounding_forward": "relative rounding error of rows",
    "rounding_backward": "relative rounding error of row gradients",
    "rounding_dense": "relative rounding error of network gradients",
    "resent": "messages sent again",
    "snapshots": "snapshots",
    "snapshot_pause_ms": "longest wait for a snapshot, ms",
    "shard_rows": "rows of each shard",
    "shard_busy": "busy fraction of each shard",
    "shard_requests": "requests per second of each shard",
}
"""Figures of `traffic` in `metrics.json` -> their names in the report."""


def table(head: Sequence[Content], rows: Sequence[Sequence[Content]], *, numbers: bool = True) -> Html:
    """Return a table; with `numbers`, all columns but the first are aligned to the right."""
    kind = "number" if numbers else None
    top = [element("th", cell, class_=kind if i else None) for i, cell in enumerate(head)]
    body = [
        element("tr", [element("td", cell, class_=kind if i else None) for i, cell in enumerate(row)])
        for row in rows
    ]
    return element("div", element("table", element("tr", top), body), class_="scroll")


def _side_by_side(
    runs: Sequence[RunReport], rows: Mapping[str, Sequence[Content]], *, numbers: bool = True
) -> list[Html]:
    """Return a table of named rows with a column for each run, without empty rows."""
    having = [[name, *cells] for name, cells in rows.items() if any(cell not in (None, "") for cell in cells)]
    return [table(["", *(run.name for run in runs)], having, numbers=numbers)] if having else []


def what_was_run(runs: Sequence[RunReport]) -> list[Html]:
    """Return the main facts of each run."""
    facts = [_facts(run) for run in runs]
    return _side_by_side(
        runs, {name: [run_facts[name] for run_facts in facts] for name in facts[0]}, numbers=False
    )


def _facts(run: RunReport) -> dict[str, str]:
    recipe, metrics = run.recipe, run.metrics
    cluster = [recipe.get(f"cluster.{key}") for key in ("exchange", "workers", "shards")]
    seconds, speed = metrics.get("seconds"), metrics.get("samples_per_second")
    return {
        "data": str(run.about("title") or ""),
        "model": str(recipe.get("model.name", "")),
        "mode": _mode(recipe),
        "processes": "one"
        if cluster[0] == "local"
        else f"{cluster[0]}: {cluster[1]} workers"
        + (f", {cluster[2]} shards" if cluster[0] == "servers" else ""),
        "started": _time(run.sessions[0].get("time")) if run.sessions else "",
        "ended": ENDINGS.get(str(metrics.get("stopped")), "not yet, or killed"),
        "steps": _whole(metrics.get("steps", _last_step(run))),
        "samples": _whole(metrics.get("samples")),
        "training time": duration(seconds) if seconds else "",
        "samples/s": _whole(speed and round(speed)),
        "steps refused": _whole(metrics.get("refused")),
    }


def _time(text: Any) -> str:
    """Return `2026-11-23 16:57 UTC` for a time in session format."""
    return str(text)[:16].replace("T", " ") + " UTC" if text else ""


def _mode(recipe: Mapping[str, Any]) -> str:
    mode = str(recipe.get("training.mode", ""))
    return mode if mode == "sync" else f"{mode}, staleness {recipe.get('training.staleness')}"


def _last_step(run: RunReport) -> int | None:
    return max((int(points[-1][0]) for points in run.curves.values()), default=None)


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def metrics(runs: Sequence[RunReport]) -> list[Html]:
    """Return test and validation metrics; for several runs, with differences to the first run.

    Floor and baseline are shown if all runs have the same. Better and worse values are coloured if both runs
    were evaluated on the same rows and labels; otherwise a warning is shown.
    """
    rows: list[list[Content]] = []
    unlike: dict[str, str] = {}
    expected = {
        "logistic regression": ("test", runs[0].floor(), [run.floor() for run in runs]),
        "LightGBM": ("validation", runs[0].baseline(), [run.baseline() for run in runs]),
    }
    shown = {
        name: (part, values)
        for name, (part, values, of_each) in expected.items()
        if values and all(other == values for other in of_each)
    }
    for part in ("test", "validation"):
        each = [quality(run.metrics.get(part) or {}) for run in runs]
        other = [run.unlike(runs[0], part) for run in runs]
        unlike |= {run.name: what for run, what in zip(runs, other, strict=True) if what}
        for key in dict.fromkeys(key for values in each for key in values):
            name = f"{part} {metric_name(key)}"
            row: list[Content] = [
                name,
                *(
                    _metric(key, values.get(key), each[0].get(key), i, not other[i])
                    for i, values in enumerate(each)
                ),
            ]
            row += [_number(values.get(key)) if part == of else "" for of, values in shown.values()]
            rows.append(row)
    if not rows:
        return []
    head = ["", *(run.name for run in runs), *shown]
    warnings = [
        f"{name} and {runs[0].name} were evaluated on different {what}, so their difference does not compare "
        "the models."
        for name, what in unlike.items()
    ]
    return [*(element("p", text, class_="worse") for text in warnings), table(head, rows)]


def _metric(
    key: str, value: float | None, first: float | None, run: int, alike: bool = True
) -> Content | Html:
    if value is None or first is None or run == 0 or math.isnan(change := value - first):
        return _number(value)
    plain = key.rpartition("/")[2].partition("@")[0]
    better = change < 0 if plain in LOWER_IS_BETTER else change > 0
    kind = (
        None
        if not alike or plain not in METRIC_NAMES or plain in NEITHER or abs(change) < 5e-5
        else "better"
        if better
        else "worse"
    )
    return element("span", f"{_number(value)} ", element("span", f"({change:+.4f})", class_=kind))


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"


def table_sizes(runs: Sequence[RunReport]) -> list[Html]:
    """Return rows and bytes of each embedding table."""
    names = dict.fromkeys(name for run in runs for name in run.tables)
    if not names:
        return []
    rows: list[list[Content]] = [[name, *_sizes([run.tables.get(name) for run in runs])] for name in names]
    rows.append(["all", *_totals(runs)])
    head = [
        "table",
        *(
            f"{run.name}: {what}" if len(runs) > 1 else what
            for run in runs
            for what in ("rows", "bytes", "bytes/row")
        ),
    ]
    text = "Sizes in the trained model, or in the newest full snapshot: ids, weights and optimizer state."
    return [element("p", text, class_="soft"), table(head, rows)]


def _sizes(found: Sequence[Any]) -> list[str]:
    cells = []
    for table_size in found:
        cells += (
            ["", "", ""]
            if table_size is None
            else [
                f"{table_size.rows:,}",
                size(table_size.bytes),
                f"{table_size.bytes / max(table_size.rows, 1):,.0f}",
            ]
        )
    return cells


def _totals(runs: Sequence[RunReport]) -> list[str]:
    cells = []
    for run in runs:
        rows, total = (
            sum(getattr(table_size, key) for table_size in run.tables.values()) for key in ("rows", "bytes")
        )
        cells += [f"{rows:,}", size(total), ""] if run.tables else ["", "", ""]
    return cells


def traffic(runs: Sequence[RunReport]) -> list[Html]:
    """Return traffic between worker 0 and the rows, without figures that are 0 in all runs."""
    each = [{k: v for k, v in (run.metrics.get("traffic") or {}).items() if v} for run in runs]
    return _side_by_side(
        runs, {name: [_figure(figures.get(key)) for figures in each] for key, name in TRAFFIC.items()}
    )


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_figure(item) for item in value)
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else ""


def machines(runs: Sequence[RunReport]) -> list[Html]:
    """Return versions and machine of each run, from its last session."""
    last = [run.sessions[-1] if run.sessions else {} for run in runs]
    names = dict.fromkeys(key for session in last for key in session if key not in ("step", "time"))
    rows: dict[str, Sequence[Content]] = {
        name.replace("_", " "): [_fact(name, session.get(name)) for session in last] for name in names
    }
    rows["sessions"] = [str(len(run.sessions)) if len(run.sessions) > 1 else "" for run in runs]
    return _side_by_side(runs, rows, numbers=False)


def _fact(name: str, value: Any) -> str:
    if name == "memory" and isinstance(value, int):
        return size(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differences(runs: Sequence[RunReport]) -> list[Html]:
    """Return the recipe keys that differ, without file locations."""
    keys = dict.fromkeys(key for run in runs for key in run.recipe)
    rows: dict[str, Sequence[Content]] = {
        key: cells
        for key in keys
        if not key.startswith("about.")
        and len(set(cells := ["" if (value := run.recipe.get(key)) is None else str(value) for run in runs]))
        > 1
    }
    if len(runs) > 1 and not rows:
        return [element("p", "None.")]
    return _side_by_side(runs, rows, numbers=False)


def recipes(runs: Sequence[RunReport]) -> list[Html]:
    """Return the complete recipes, folded."""
    return [element("details", element("summary", run.name), element("pre", run.recipe_text)) for run in runs]


def missing(runs: Sequence[RunReport]) -> list[Html]:
    """Return the missing content of each run, one sentence each."""
    several = len(runs) > 1
    lines = [
        element("li", f"{run.name}: {text}" if several else text) for run in runs for text in run.missing
    ]
    return [element("ul", lines)] if lines else []
