import re
from dataclasses import replace

from satrap.tools.report_page import RunReport, page
from satrap.tools.report_page.html import swatch
from tests.tools.report_page.runs import NASTY, Page, full

TITLES = [
    "Run",
    "Metrics",
    "Over the steps",
    "ROC and calibration",
    "Gain by feature",
    "Tables",
    "Time by stage",
    "Staleness",
    "Traffic",
    "Versions and machine",
    "Recipe",
]


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


def test_the_page_has_all_sections_and_needs_nothing_else() -> None:
    text = page([full()])
    parsed = Page(text)
    assert headings(text) == TITLES
    assert "script" not in parsed.tags
    assert [name for name, _ in parsed.attributes if name in ("src", "href", "onclick")] == []
    assert "http" not in text
    assert "url(" not in text


def test_names_from_data_and_recipe_are_escaped() -> None:
    run = replace(full(NASTY, user=NASTY), recipe_text=NASTY, missing=[NASTY], curves={"loss": [(1, 2)]})
    run = replace(run, recipe={NASTY: NASTY, "about.title": NASTY}, sessions=[{NASTY: NASTY}])
    assert run.scores is not None
    label = run.scores.labels["clicked"]
    run = replace(run, scores=replace(run.scores, labels={NASTY: label}))
    text = page([run, full()])
    assert "script" not in Page(text).tags
    assert text.count("&lt;script&gt;") > 10


def test_a_run_without_anything_is_a_page() -> None:
    text = page([RunReport("a", missing=["There is nothing."])])
    Page(text)
    assert headings(text) == ["Run", "Recipe", "Missing from this report"]
    assert "There is nothing." in text


def test_several_runs_have_their_colours_and_differences() -> None:
    other = replace(full("runs/b", auc=0.8), recipe={"model.name": "deepfm", "training.mode": "hybrid"})
    text = page([full(), other])
    Page(text)
    assert headings(text) == [*TITLES[:-1], "Recipe differences", "Recipe"]
    assert "var(--c1)" in text
    assert "(+0.0500)" in text
    assert "<h1>satrap report</h1>" in text
    assert "<title>satrap report: runs/a, runs/b</title>" in text
    runs = re.findall(r'<p class="legend"><span>(.*?) </span><span>(.*?) </span></p>', text)
    assert runs[0] == (swatch(0) + "runs/a", swatch(1) + "runs/b")
    assert swatch(7) == '<span class="swatch" style="background: var(--c1)"></span>'
