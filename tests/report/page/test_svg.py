import re

import pytest

from satrap.report.page.svg import HEIGHT, LEFT, RIGHT, WIDTH, Line, alike, bars, chart, number, ticks
from tests.report.page.runs import NASTY, Page


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
