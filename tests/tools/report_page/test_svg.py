import re
from collections.abc import Sequence

import pytest

from satrap.tools.report_page.svg import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Line,
    _padded,
    _span,
    alike,
    bars,
    chart,
    number,
    ticks,
)
from tests.tools.report_page.runs import NASTY, Page


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.651, 0.653, [0.651, 0.6515, 0.652, 0.6525, 0.653]),
        (0, 1534, [0, 500, 1000, 1500]),
        (-3, 4, [-2, 0, 2, 4]),
        (1e9, 1.2e9, [1e9, 1.05e9, 1.1e9, 1.15e9, 1.2e9]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_numbers_of_an_axis() -> None:
    values = [0, 0.7755, 1534, 10_000, 1_500_000, 2e9, 3e12, -25_000]
    assert [number(v) for v in values] == ["0", "0.7755", "1534", "10k", "1.5M", "2G", "3T", "-25k"]


def elements(picture: str) -> list[str]:
    """Return `name attribute attribute ...: text` of each element."""
    found = re.findall(r"<(\w+)([^>]*)>([^<]*)", picture)
    return [(name + inside.replace('"', "") + (f": {text}" if text else "")) for name, inside, text in found]


def crossing(xs: Sequence[int], top: int, bottom: int, texts: Sequence[str]) -> list[str]:
    """Return the lines of a grid from top to bottom, with a text below each."""
    return [
        one
        for x, text in zip(xs, texts, strict=True)
        for one in (
            f"line x1={x}.0 x2={x}.0 y1={top} y2={bottom}.0 class=grid",
            f"text x={x}.0 y={bottom + 14}.0 class=axis middle: {text}",
        )
    ]


def test_a_chart_to_the_last_number() -> None:
    """Of 460 x 250 the plot has 72 to 440 and 10 to 210; 10 is 6 % below the upper end, 0 at the lower."""
    lines = [Line("a", [(0, 0), (4, 10)], 1, dashed=True), Line("b", [(2, 5)], 8, dots=True)]
    assert elements(chart("t", lines, x="step", y="loss")) == [
        "figure",
        "figcaption: t",
        "svg viewBox=0 0 460 250 role=img aria-label=t",
        *crossing([72, 164, 256, 348, 440], 10, 210, "01234"),
        "line x1=72 x2=440 y1=210.0 y2=210.0 class=grid",
        "text x=66 y=214.0 class=axis end: 0",
        "line x1=72 x2=440 y1=115.7 y2=115.7 class=grid",
        "text x=66 y=119.7 class=axis end: 5",
        "line x1=72 x2=440 y1=21.3 y2=21.3 class=grid",
        "text x=66 y=25.3 class=axis end: 10",
        "text x=256.0 y=246 class=axis middle: step",
        "text transform=translate(12 110.0) rotate(-90) class=axis middle: loss",
        "polyline points=72.0,210.0 440.0,21.3 class=dashed style=stroke: var(--c1)",
        "polyline points=256.0,115.7 class=line style=stroke: var(--c2)",
        "circle cx=256.0 cy=115.7 r=3 style=fill: var(--c2)",
        "title: b: 2, 5",
        "p class=legend",
        "span",
        "i style=border-top: 2px dashed var(--c1)",
        "span",
        "i style=border-top: 2px solid var(--c2)",
    ]
    assert '<p class="legend"></p>' in chart("t", lines[:1], x="step", y="loss")
    assert 'viewBox="0 0 460 418"' in chart("t", lines[:1], x="step", y="loss", square=True)


def test_bars_to_the_last_number() -> None:
    """Bars are 12 high with 8 between groups; -1 to 2 lie between 150 and 396."""
    long, fits = "n" * 23, "m" * 22
    assert elements(bars("gain", {"first": [2.0, -1.0], long: [None, 0.0], fits: [1.0]}, x="AUC")) == [
        "figure",
        "figcaption: gain",
        "svg viewBox=0 0 460 116 role=img aria-label=gain",
        *crossing([150, 232, 314, 396], 0, 84, ["-1", "0", "1", "2"]),
        "text x=273.0 y=111.0 class=axis middle: AUC",
        "text x=142 y=16.0 class=name",
        "title: first",
        "rect x=232.0 y=1.0 width=164.0 height=10 style=fill: var(--c0)",
        "title: first: 2",
        "text x=400.0 y=10.0 class=value: 2.000",
        "rect x=150.0 y=13.0 width=82.0 height=10 style=fill: var(--c1)",
        "title: first: -1",
        "text x=236.0 y=22.0 class=value: -1.000",
        "text x=142 y=48.0 class=name",
        f"title: {long}",
        "rect x=232.0 y=45.0 width=0.5 height=10 style=fill: var(--c1)",
        f"title: {long}: 0",
        "text x=236.0 y=54.0 class=value: 0.000",
        "text x=142 y=74.0 class=name",
        f"title: {fits}",
        "rect x=232.0 y=65.0 width=82.0 height=10 style=fill: var(--c0)",
        f"title: {fits}: 1",
        "text x=318.0 y=74.0 class=value: 1.000",
    ]
    assert f"</title>{'n' * 21}…</text>" in bars("gain", {long: [1.0]}, x="AUC")
    assert f"</title>{fits}</text>" in bars("gain", {fits: [1.0]}, x="AUC")
    for value, axis in ((2.0, ["0", "1", "2"]), (5.0, ["0", "2", "4"])):  # about three
        assert re.findall(r'middle">(\d)<', bars("gain", {"a": [value]}, x="AUC")) == axis
    for value in (2.0, -2.0):  # all bars begin at 0
        assert 'x="150.0" y="1.0" width="246.0"' in bars("gain", {"a": [value]}, x="AUC")
    many = bars("gain", {str(i): [1.0] for i in range(41)}, x="AUC")
    assert (many.count("<rect"), "gain: the first 40 of 41" in many) == (40, True)


def test_ranges_of_axes() -> None:
    assert [_span(values) for values in ([], [5.0], [0.0], [-5.0], [3.0, 1.0])] == [
        (0, 1),
        (4.5, 5.5),
        (-1, 1),
        (-5.5, -4.5),
        (1, 3),
    ]
    ranges = [(2.0, 12.0), (0.1, 10.1), (0.0, 10.0), (-2.0, 8.0)]
    expected = [(1.4, 12.6), (0, 10.7), (0, 10.6), (-2.6, 8.6)]
    assert [_padded(*one) for one in ranges] == [pytest.approx(one) for one in expected]


def drawn(picture: str) -> list[list[tuple[float, float]]]:
    lists = re.findall(r'<polyline points="([^"]*)"', picture)
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in one.split())] for one in lists]


def test_points_are_drawn_in_proportion() -> None:
    picture = chart("t", [Line("a", [(0, 1), (5, 2), (10, 5)], dots=True)], x="step", y="loss")
    [[first, second, third]] = drawn(picture)
    assert (first[0], third[0]) == (LEFT, WIDTH - RIGHT)
    assert second[0] == pytest.approx((first[0] + third[0]) / 2)
    assert first[1] - third[1] == pytest.approx(4 * (first[1] - second[1]), abs=0.5)
    assert 0 < third[1] < first[1] < HEIGHT
    assert Page(picture).tags.count("circle") == 3
    assert picture.count("var(--c0)") == 4


def test_a_square_has_a_diagonal_and_equal_axes() -> None:
    diagonal, line = drawn(chart("t", [Line("a", [(0, 0), (0.5, 0.5)])], x="x", y="y", square=True))
    assert line[0] == diagonal[0]
    assert line[1] == pytest.approx(
        ((diagonal[0][0] + diagonal[1][0]) / 2, (diagonal[0][1] + diagonal[1][1]) / 2)
    )
    width, height = diagonal[1][0] - diagonal[0][0], diagonal[0][1] - diagonal[1][1]
    assert width == height


def test_one_point_equal_values_and_nasty_names() -> None:
    for points in ([(5, 0.7)], [(0, 0), (1, 0)], [(1, -2), (2, -2)]):
        page = Page(chart(NASTY, [Line(NASTY, points, dots=True), Line("b", points, 7)], x=NASTY, y="y"))
        assert "script" not in page.tags
        assert "nan" not in " ".join(value or "" for _, value in page.attributes)


def test_bars_are_as_long_as_their_values() -> None:
    picture = bars("gain", {"a": [2.0, 1.0], NASTY: [-1.0, None]}, x="AUC")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)"', picture)]
    assert widths == pytest.approx([2 * widths[1], widths[1], widths[1]], abs=0.2)
    starts = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', picture)]
    assert starts[2] + widths[2] == pytest.approx(starts[0], abs=0.2)  # to the left of 0
    assert "script" not in Page(picture).tags


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.227, 2.56e-05, -0.05], ["0.2270", "0.0000", "-0.0500"]),
        ([14.2, 0.266, -1e-9], ["14.20", "0.27", "0.00"]),
        ([61_849.0, 2.5], ["61,849", "2"]),
        ([0.0], ["0"]),
        ([3e-05, 1e-06], ["0.00003000", "0.00000100"]),
    ],
)
def test_values_beside_bars_can_be_compared(values: list[float], expected: list[str]) -> None:
    assert [alike(values)(value) for value in values] == expected
    shown = re.findall(r'class="value">([^<]*)<', bars("gain", {"a": values}, x="AUC"))
    assert shown == expected


def test_too_many_bars_are_cut_and_said() -> None:
    picture = bars("gain", {str(i): [1.0] for i in range(50)}, x="x", shown=7)
    assert picture.count("<rect") == 7
    assert "gain: the first 7 of 50" in picture
    assert "<rect" not in bars("nothing", {}, x="x")
