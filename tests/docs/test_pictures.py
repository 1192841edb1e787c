"""The pictures of the README show what was measured."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tools_dev import pictures


def test_the_chart_of_speeds_is_drawn_from_the_raw_figures() -> None:
    assert (pictures.IMAGES / "speed.svg").read_text(encoding="utf-8") == pictures.speed()


def test_the_chart_of_speeds_has_the_figures_of_the_benchmark() -> None:
    table = (pictures.RAW.parent / "README.md").read_text(encoding="utf-8")
    ratios = re.findall(r'<tspan class="title">([\d.]+)</tspan>', pictures.speed())
    assert len(ratios) == len(pictures.SPEEDS)
    assert [ratio for ratio in ratios if f"**{ratio}**" not in table] == []


def test_a_report_is_drawn_with_its_runs_and_figures() -> None:
    figures = "".join(
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 460 {height}" role="img">'
        f"<text>{title}</text></svg></figure>"
        for title, height in (
            ("Calibration", 250),
            ("AUC", 250),
            ("Calibration of x", 418),
            ("Loss of AUC", 90),
        )
    )
    page = f'<p><span><span class="swatch" style="x"></span> runs/a</span></p>{figures}'
    drawn = ElementTree.fromstring(pictures.report(page))
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert "runs/a" in texts
    assert {"AUC", "Calibration of x", "Loss of AUC"} <= set(texts)
    assert "Calibration" not in texts
    assert drawn.get("viewBox") == "0 0 984 512"


def test_the_pictures_load_nothing_and_run_nothing() -> None:
    for path in pictures.IMAGES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 40_000
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|url\(", text) == []
