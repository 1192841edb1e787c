"""Draw the pictures of the README, `docs/images/*.svg`.

    python -m tools_dev.pictures speed             # from raw figures of benchmarks.train_vs_pytorch
    python -m tools_dev.pictures report FILE.html  # from a page that `satrap report` has written

The report is the one of docs/tutorials/report.md: `satrap report runs/first runs/lr --output both.html`.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RAW = ROOT / "benchmarks" / "train_vs_pytorch" / "results"

SPEEDS = {
    "rows take most of the time, dim 16": "2026-11-22T012837",
    "rows take most of the time, dim 64": "2026-11-22T013205",
    "DLRM, float32": "2026-11-22T013104",
    "DLRM, bfloat16": "2026-11-26T185259",
    "DLRM, one H100: rows in RAM against on the GPU": "2026-11-26T062817",
}
"""What was measured -> the file with the raw figures, from top to bottom."""
SPEED_NOTE = (
    "Two CPU cores of an AMD EPYC unless stated. "
    "satrap also reads, hashes and creates rows in this time; PyTorch does not."
)
SPEED_STYLE = """
text { font: 13px sans-serif; fill: #1b1f24; paint-order: stroke; stroke: white; stroke-width: 4; }
.end { text-anchor: end; }
.title { font-weight: 600; }
.soft { fill: #5a6472; font-size: 12px; }
rect { fill: #0b66b3; }
.slower { fill: #c8500a; }
line { stroke: #1b1f24; stroke-dasharray: 3 3; }
"""
WIDTH, BAR, LEFT, SCALE = 860, 44, 330, 112
"""Of the chart of speeds, in pixels: the whole, a bar with its gap, where bars begin, a ratio of 1."""

FIGURES = (
    {"AUC": "AUC over the steps: training dashed, validation with dots", "Loss": "AUC lost if shuffled"},
    {"Calibration": "Calibration of validation rows"},
)
"""By column: first word of a figure's title in a report -> its caption. The last such figure is drawn."""
REPORT_STYLE = """
text { font-family: sans-serif; }
text.caption { font-weight: 600; font-size: 14px; }
.card { fill: var(--card); stroke: var(--rule); }
"""
COLUMN, GAP, CAPTION = 460, 16, 34
"""Of the picture of a report, in pixels: the width of a figure, between figures, the height of a caption."""


def speed() -> str:
    """Return the chart of satrap's speed as a multiple of the faster PyTorch loop's."""
    bottom = BAR * (len(SPEEDS) + 1)
    parts = [
        f'<line x1="{LEFT + SCALE}" x2="{LEFT + SCALE}" y1="36" y2="{bottom - 8}"/>',
        '<text x="10" y="24" class="title">Training speed, plain PyTorch = 1</text>',
        f'<text x="10" y="{bottom + 14}" class="soft">{SPEED_NOTE}</text>',
    ]
    for number, (label, name) in enumerate(SPEEDS.items(), 1):
        ours, theirs = _speeds(json.loads((RAW / f"{name}.json").read_text(encoding="utf-8")))
        ratio, y = ours / theirs, number * BAR
        length, kind = SCALE * ratio, ' class="slower"' if ratio < 1 else ""
        figures = f"  {ours / 1000:,.0f} against {theirs / 1000:,.0f} thousand samples/s"
        parts += [
            f'<text x="{LEFT - 12}" y="{y + 18}" class="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="28"{kind}/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 18}"><tspan class="title">{ratio:.2f}</tspan>'
            f'<tspan class="soft">{figures}</tspan></text>',
        ]
    return _document(WIDTH, bottom + 26, SPEED_STYLE, parts)


def _speeds(content: dict[str, Any]) -> tuple[float, float]:
    """Return satrap's samples per second, and those of the fastest loop of PyTorch."""
    sides = content["results"]["sides"].items()
    medians = {name: side["median_samples_per_second"] for name, side in sides}
    return medians.pop("satrap"), max(medians.values())


def report(page: str) -> str:
    """Return a picture of the figures of a report that a reader looks at first."""
    figure = r'<figcaption>(\w+)[^<]*</figcaption><svg viewBox="0 0 460 ([\d.]+)"[^>]*>(.*?)</svg>'
    figures = {name: (float(height), svg) for name, height, svg in re.findall(figure, page, re.DOTALL)}
    parts, bottom = [], 0.0
    for number, name in enumerate(re.findall(r'class="swatch"[^>]*></span>([^<]+)', page)):
        x = 8 + 130 * number
        parts += [
            f'<rect x="{x}" y="14" width="12" height="12" rx="2" style="fill: var(--c{number})"/>',
            f'<text x="{x + 18}" y="25" class="caption">{name.strip()}</text>',
        ]
    for column, chosen in enumerate(FIGURES):
        x, y = GAP + column * (COLUMN + 2 * GAP), 40.0
        for key, caption in chosen.items():
            height, svg = figures[key]
            card = height + CAPTION + 4
            parts += [
                f'<rect x="{x - 8}" y="{y}" width="{COLUMN + 16}" height="{card}" rx="6" class="card"/>',
                f'<text x="{x + 6}" y="{y + 22}" class="caption">{caption}</text>',
                f'<svg x="{x}" y="{y + CAPTION}" width="{COLUMN}" height="{height}">{svg}</svg>',
            ]
            y += card + GAP
        bottom = max(bottom, y)
    return _document(2 * COLUMN + 4 * GAP, bottom, _report_style() + REPORT_STYLE, parts)


def _report_style() -> str:
    """Return what the report's style sheet says of drawings in light colours."""
    sheet = (ROOT / "src/satrap/tools/report_page/style.css").read_text(encoding="utf-8")
    colours, *_ = sheet.partition("@media")
    everywhere, *_ = sheet.partition("@media screen and (max-width")
    _, *drawings = re.findall(r"^svg (.*\})$", everywhere, re.MULTILINE)  # the first is the size on the page
    return "\n".join([colours.replace("color-scheme: light dark;", ""), *drawings])


def _document(width: float, height: float, style: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
    paper = '<rect width="100%" height="100%" style="fill: white"/>'
    return "\n".join([head, f"<style>{style}</style>", paper, *parts, "</svg>\n"])


def main(kind: str, *pages: str) -> None:
    drawn = speed() if kind == "speed" else report(Path(pages[0]).read_text(encoding="utf-8"))
    (IMAGES / f"{kind}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
