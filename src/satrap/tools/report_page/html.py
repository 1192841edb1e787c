"""The report as one self-contained HTML page, without network access or scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files

from satrap.tools.report_page import sections, tables
from satrap.tools.report_page.element import Html, element, joined
from satrap.tools.report_page.run import RunReport
from satrap.tools.report_page.svg import COLORS

SECTIONS: Sequence[tuple[str, Callable[[Sequence[RunReport]], Sequence[Html]]]] = (
    ("Run", tables.what_was_run),
    ("Metrics", tables.metrics),
    ("Over the steps", sections.over_steps),
    ("ROC and calibration", sections.roc_and_calibration),
    ("Gain by feature", sections.gain_by_feature),
    ("Tables", tables.table_sizes),
    ("Time by stage", sections.stages),
    ("Staleness", sections.staleness),
    ("Traffic", tables.traffic),
    ("Versions and machine", tables.machines),
    ("Recipe differences", tables.differences),
    ("Recipe", tables.recipes),
    ("Missing from this report", tables.missing),
)
"""Title and content of each section; a section without content is omitted."""
NOTHING = Html("")


def page(runs: Sequence[RunReport]) -> str:
    """Return the page of one run, or of several runs side by side."""
    contents = [(heading, section(runs)) for heading, section in SECTIONS]
    return document("satrap report: " + ", ".join(run.name for run in runs), contents, _runs(runs))


def document(title: str, sections: Sequence[tuple[str, Sequence[Html]]], beginning: Html = NOTHING) -> str:
    """Return a page of sections, each with its heading; sections without content are omitted.

    Args:
        title: title of the page; the part before the colon is its heading.
        sections: (heading, content).
        beginning: content before the first section, default none.
    """
    style = files("satrap.tools.report_page").joinpath("style.css").read_text(encoding="utf-8")
    body = [element("h1", title.partition(":")[0]), beginning]
    body += [element("section", element("h2", heading), content) for heading, content in sections if content]
    head = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Html(style)),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head>{joined(head)}</head>\n<body>{joined(body)}</body></html>\n'
    )


def _runs(runs: Sequence[RunReport]) -> Html:
    """Return the runs with their colours."""
    return element(
        "p", [element("span", swatch(i), f"{run.name} ") for i, run in enumerate(runs)], class_="legend"
    )


def swatch(run: int) -> Html:
    """Return a small square in the colour of a run."""
    return element("span", class_="swatch", style=f"background: var(--c{run % COLORS})")
