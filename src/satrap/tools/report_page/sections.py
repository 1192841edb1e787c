"""The sections of the report with charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from satrap.runtime.formatting import metric_name
from satrap.tools.report_page.element import Html, element
from satrap.tools.report_page.run import RunReport, Scores
from satrap.tools.report_page.svg import Line, bars, chart

SHOWN_STALENESS = 24
"""Most values of staleness with their own bars."""

TRAINED = ("auc", "accuracy", "rmse")
"""Metrics that are also measured during training."""

GAINS = (("auc", 1), ("accuracy", 1), ("rmse", -1), ("logloss", -1), ("loss", -1))
"""Metrics for gain by feature; the first two of a run are shown. 1: higher is better."""

OTHERS = {
    "samples_per_second": "samples/s",
    "rows": "rows in the tables",
    "memory_bytes": "bytes of the store",
}
"""Other figures with their own chart -> name of the axis."""


def over_steps(runs: Sequence[RunReport]) -> list[Html]:
    """Return the charts of training and validation over steps."""
    charts = [_overlaid(runs, *names) for names in _pairs(runs)]
    charts += [_plain(runs, name, y) for name, y in OTHERS.items() if any(name in run.curves for run in runs)]
    return [_grid(charts)] if charts else []


def _pairs(runs: Sequence[RunReport]) -> list[tuple[str, str, str]]:
    """Return (training figure, validation metric, axis) of each chart; "" if there is none.

    With several labels only their means are shown.
    """
    names = {name for run in runs for name in run.curves}
    # The training loss is `loss` for several labels or regression, the logloss for one label of classes.
    loss = next((name for name in ("validation/loss", "validation/logloss") if name in names), "")
    pairs = (
        [("loss", loss, metric_name(loss.removeprefix("validation/") or "loss"))] if "loss" in names else []
    )
    pairs += [
        (metric, f"validation/{metric}", metric_name(metric))
        for metric in TRAINED
        if names & {metric, f"validation/{metric}"}
    ]
    paired = {pair[1] for pair in pairs} | {"validation/ne"}  # logloss on another scale
    others = sorted(
        name for name in names - paired if name.startswith("validation/") and name.count("/") == 1
    )
    return pairs + [("", name, metric_name(name.removeprefix("validation/"))) for name in others]


def _overlaid(runs: Sequence[RunReport], training: str, validation: str, axis: str) -> Html:
    lines = []
    for color, run in enumerate(runs):
        if points := run.curves.get(training):
            lines.append(Line(f"{_name(runs, run)}training", points, color, dashed=bool(validation)))
        if points := run.curves.get(validation):
            lines.append(Line(f"{_name(runs, run)}validation", points, color, dots=True))
    return chart(axis[0].upper() + axis[1:], lines, x="step", y=axis)


def _plain(runs: Sequence[RunReport], name: str, axis: str) -> Html:
    lines = [Line(run.name, run.curves[name], color) for color, run in enumerate(runs) if name in run.curves]
    return chart(axis[0].upper() + axis[1:], lines, x="step", y=axis)


def roc_and_calibration(runs: Sequence[RunReport]) -> list[Html]:
    """Return a ROC curve and a calibration plot for each label, with all runs."""
    names = dict.fromkeys(label for run in runs if run.scores for label in run.scores.labels)
    charts = []
    for label in names:
        having = [
            (i, run.name, run.scores.labels[label])
            for i, run in enumerate(runs)
            if run.scores and label in run.scores.labels
        ]
        roc = [
            Line(f"{name}, AUC {curves.auc:.4f}", curves.roc, i) for i, name, curves in having if curves.roc
        ]
        calibration = [Line(name, curves.calibration, i, dots=True) for i, name, curves in having]
        of = f" of {label}"
        if roc:
            charts.append(
                chart(
                    f"ROC{of}: {_areas(roc)}",
                    roc,
                    x="false positive rate",
                    y="true positive rate",
                    square=True,
                )
            )
        charts.append(
            chart(f"Calibration{of}", calibration, x="mean prediction", y="share of positives", square=True)
        )
    if not charts:
        return []
    what = [f"{run.name}: {run.scores.rows:,} {run.scores.part} rows" for run in runs if run.scores]
    text = f"{'; '.join(what)}. Calibration: each point covers about a twentieth of the rows."
    return [element("p", text, class_="soft"), _grid(charts)]


def _areas(roc: Sequence[Line]) -> str:
    return roc[0].name.rpartition(", ")[2] if len(roc) == 1 else f"{len(roc)} runs"


def gain_by_feature(runs: Sequence[RunReport]) -> list[Html]:
    """Return bars: how much worse each metric gets if a feature's values are permuted."""
    known = {name for run in runs if run.scores for name in run.scores.base}
    charts, samples = [], []
    for metric, sign in [gain for gain in GAINS if gain[0] in known][:2]:
        name = metric_name(metric)
        rows = gains(runs, metric, sign)
        charts.append(bars(f"Loss of {name}" if sign > 0 else f"Increase of {name}", rows, x=name))
    for run in runs:
        if charts and run.scores and run.scores.sampled:
            samples.append(f"{run.name}: {_sampled(run.scores)}")
    if not charts:
        return []
    text = (
        "How much worse the model gets if the values of one feature are shuffled among the rows. Features "
        "from one column are shuffled together. Correlated features of different columns split their "
        f"importance. {'; '.join(samples)}."
    )
    together = {name: of for run in runs if run.scores for name, of in run.scores.groups.items()}
    lines = [element("li", f"{name}: {', '.join(of)}") for name, of in together.items()]
    folded = element("details", element("summary", "Shuffled together"), element("ul", lines))
    return [element("p", text, class_="soft"), *([folded] if lines else []), _grid(charts)]


def _sampled(scores: Scores) -> str:
    if scores.sampled == scores.rows:
        return f"all {scores.rows:,} {scores.part} rows"
    return f"{scores.sampled:,} of {scores.rows:,} {scores.part} rows, drawn at random"


def gains(runs: Sequence[RunReport], metric: str, sign: int) -> Mapping[str, list[float | None]]:
    """Return feature -> gain in each run, largest first; None for a run without this feature."""
    each: list[dict[str, float]] = []
    for run in runs:
        base = run.scores.base.get(metric) if run.scores else None
        of: dict[str, float] = {}
        if base is not None and run.scores:
            of = {name: sign * (base - m[metric]) for name, m in run.scores.permuted.items() if metric in m}
        each.append(of)
    names = sorted(
        {name for by_feature in each for name in by_feature},
        key=lambda name: -max(by_feature.get(name, -1e300) for by_feature in each),
    )
    return {name: [by_feature.get(name) for by_feature in each] for name in names}


def stages(runs: Sequence[RunReport]) -> list[Html]:
    """Return bars of the training thread's seconds by stage."""
    times = [_stage_seconds(run) for run in runs]
    names = dict.fromkeys(name for seconds in times for name in seconds)
    if not names:
        return []
    text = (
        "Seconds of the training thread of worker 0. read: waiting for a batch; lookup: waiting for rows; "
        "forward: pooling, model and loss; dense: backward pass and the network's step; push: sending "
        "gradients of rows."
    )
    rows = {name: [seconds.get(name) for seconds in times] for name in names}
    return [element("p", text, class_="soft"), _grid([bars("Time by stage", rows, x="seconds")])]


def _stage_seconds(run: RunReport) -> Mapping[str, float]:
    seconds = run.metrics.get("traffic", {}).get("stage_seconds", {})
    return seconds if isinstance(seconds, Mapping) else {}


def staleness(runs: Sequence[RunReport]) -> list[Html]:
    """Return bars: fraction of lookups by number of own updates missed."""
    counts = [{int(k): v for k, v in (run.metrics.get("staleness") or {}).items()} for run in runs]
    values = sorted({value for counted in counts for value in counted})
    if not values:
        return []
    totals = [sum(counted.values()) for counted in counts]
    rows = {
        f"{value} missed": [
            counted.get(value, 0) / total if total else None
            for counted, total in zip(counts, totals, strict=True)
        ]
        for value in values
    }
    text = "Fraction of worker 0's lookups that missed its latest 0, 1, ... updates."
    figure = bars("Own updates missed", rows, x="share of lookups", shown=SHOWN_STALENESS)
    return [element("p", text, class_="soft"), _grid([figure])]


def _name(runs: Sequence[RunReport], run: RunReport) -> str:
    return "" if len(runs) == 1 else f"{run.name} "


def _grid(figures: Sequence[Html]) -> Html:
    return element("div", figures, class_="grid-of")
