"""Line charts and bar charts as SVG, with colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from satrap.tools.report_page.element import Html, element, joined
from satrap.tools.report_page.run import Points

COLORS = 6
"""Colours of runs in the style, `--c0` to `--c5`; further runs reuse them."""

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 10, 40
"""Margins of the plot, in drawing units."""

BAR, GAP, NAMES = 12, 8, 150
"""Height of a bar, space between two groups of bars, width for names."""


_Place = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart.

    Args:
        name: name in the legend and the tooltip.
        points: (x, y), finite, x rising.
        color: index of the run.
        dashed: draw it dashed.
        dots: mark each point.
    """

    name: str
    points: Points
    color: int = 0
    dashed: bool = False
    dots: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers in [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a number short enough for an axis: `0.775`, `12k`, `1.5M`."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.5g}"


def alike(values: Sequence[float]) -> Callable[[float], str]:
    """Return a formatter of numbers, with four significant digits for the largest of `values`."""
    largest = max(map(abs, values), default=0.0)
    decimals = max(0, 3 - math.floor(math.log10(largest))) if largest else 0
    return lambda value: f"{round(value, decimals) + 0.0:,.{decimals}f}"  # + 0.0: no "-0"


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    square: bool = False,
) -> Html:
    """Return a figure with lines and a legend; `square`: both axes from 0 to 1, with the diagonal."""
    points = [point for line in lines for point in line.points]
    x_range = (0.0, 1.0) if square else _span([p[0] for p in points])
    y_range = (0.0, 1.0) if square else _padded(*_span([p[1] for p in points]))
    height = WIDTH - LEFT - RIGHT + TOP + BOTTOM if square else HEIGHT
    place = _Scale(x_range, y_range, height)
    inner: list[Html] = [_axes(place, x, y)]
    if square:
        inner.append(_path([place(0, 0), place(1, 1)], class_="diagonal"))
    inner += [_line(line, place) for line in lines]
    picture = element("svg", inner, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=title)
    legend = [_key(line) for line in lines] if len(lines) > 1 else []
    return element("figure", element("figcaption", title), picture, element("p", legend, class_="legend"))


def bars(title: str, rows: Mapping[str, Sequence[float | None]], *, x: str, shown: int = 40) -> Html:
    """Return a figure with a group of bars per row: one bar per run, None for a run without a value.

    Only the first `shown` rows are drawn; the caption has the total.
    """
    drawn = dict(list(rows.items())[:shown])
    values = [value for group in drawn.values() for value in group if value is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    high = high if high > low else low + 1
    at, top = dict[str, float](), 0.0
    for name, group in drawn.items():
        at[name] = top
        top += len(group) * BAR + GAP
    height = top + BOTTOM - 8

    def place(value: float) -> float:
        return NAMES + (value - low) / (high - low) * (WIDTH - NAMES - 64)

    inner = [_vertical(place(tick), top, number(tick)) for tick in ticks(low, high, 3)]
    inner.append(element("text", x, x=place((low + high) / 2), y=height - 5, class_="axis middle"))
    for name, group in drawn.items():
        inner += _group(name, group, at[name], place, alike(values))
    caption = title if len(rows) <= shown else f"{title}: the first {shown} of {len(rows)}"
    return element(
        "figure",
        element("figcaption", caption),
        element("svg", inner, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=title),
    )


def _group(
    name: str, group: Sequence[float | None], top: float, place: _Place, written: Callable[[float], str]
) -> list[Html]:
    short = name if len(name) <= 22 else f"{name[:21]}…"
    middle = top + len(group) * BAR / 2 + 4
    label = element("text", element("title", name), short, x=NAMES - 8, y=f"{middle:.1f}", class_="name")
    elements = [label]
    for run, value in enumerate(group):
        if value is None:
            continue
        start, end = sorted((place(0), place(value)))
        y = top + run * BAR
        elements.append(
            element(
                "rect",
                element("title", f"{name}: {value:.6g}"),
                x=f"{start:.1f}",
                y=f"{y + 1:.1f}",
                width=f"{max(end - start, 0.5):.1f}",
                height=BAR - 2,
                style=f"fill: var(--c{run % COLORS})",
            )
        )
        elements.append(
            element("text", written(value), x=f"{end + 4:.1f}", y=f"{y + 10:.1f}", class_="value")
        )
    return elements


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps data to positions in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: float

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            self.height - BOTTOM - up * (self.height - TOP - BOTTOM),
        )


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value, or a range around them if they are equal."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1))


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return a slightly wider range, which does not cross 0."""
    pad = (high - low) * 0.06
    return (max(low - pad, 0.0) if low >= 0 else low - pad), high + pad


def _axes(place: _Scale, x: str, y: str) -> Html:
    bottom = place.height - BOTTOM
    elements = [_vertical(place(tick, 0)[0], bottom, number(tick), top=TOP) for tick in ticks(*place.x)]
    for tick in ticks(*place.y):
        level = f"{place(0, tick)[1]:.1f}"
        elements.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, class_="grid"))
        elements.append(element("text", number(tick), x=LEFT - 6, y=float(level) + 4, class_="axis end"))
    elements.append(
        element("text", x, x=(LEFT + WIDTH - RIGHT) / 2, y=place.height - 4, class_="axis middle")
    )
    turned = f"translate(12 {(TOP + bottom) / 2}) rotate(-90)"
    elements.append(element("text", y, transform=turned, class_="axis middle"))
    return joined(elements)


def _vertical(at: float, bottom: float, text: str, top: float = 0) -> Html:
    """Return a grid line with its number below."""
    x = f"{at:.1f}"
    return joined(
        [
            element("line", x1=x, x2=x, y1=top, y2=f"{bottom:.1f}", class_="grid"),
            element("text", text, x=x, y=f"{bottom + 14:.1f}", class_="axis middle"),
        ]
    )


def _line(line: Line, place: _Scale) -> Html:
    color = f"var(--c{line.color % COLORS})"
    points = [place(*point) for point in line.points]
    path = _path(points, class_="dashed" if line.dashed else "line", style=f"stroke: {color}")
    dots = [
        element(
            "circle",
            element("title", f"{line.name}: {x:.6g}, {y:.6g}"),
            cx=f"{at[0]:.1f}",
            cy=f"{at[1]:.1f}",
            r=3,
            style=f"fill: {color}",
        )
        for at, (x, y) in zip(points, line.points, strict=True)
        if line.dots
    ]
    return joined([path, *dots])


def _path(points: Sequence[tuple[float, float]], **attributes: object) -> Html:
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


def _key(line: Line) -> Html:
    stroke = f"border-top: 2px {'dashed' if line.dashed else 'solid'} var(--c{line.color % COLORS})"
    mark = element("i", style=stroke)
    return element("span", mark, f" {line.name}")
