"""A line plot as SVG text: logarithmic x axis, linear y axis from 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 180, 40, 50
COLOURS = ("#1f6fb4", "#d9541e", "#2a9d55", "#8a4fbf", "#555555", "#b8860b")


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of (x > 0, y) points."""

    name: str
    points: list[tuple[float, float]]


def line_plot(title: str, x_label: str, y_label: str, lines: list[Line]) -> str:
    """Return an SVG document."""
    xs = [x for line in lines for x, _ in line.points]
    low, high = math.log10(min(xs)), math.log10(max(xs))
    top = max(y for line in lines for _, y in line.points) * 1.1

    def place(x: float, y: float) -> str:
        across = LEFT + (math.log10(x) - low) / (high - low or 1) * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [_text(WIDTH / 2, 20, title, "middle"), _text(LEFT, TOP - 8, y_label, "end")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle"))
    for k in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1):
        x = float(place(10.0**k, 0).split(",")[0])
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"1e{k}", "middle"))
    for k in range(6):
        y = top * k / 5
        parts.append(_text(LEFT - 6, float(place(10.0**low, y).split(",")[1]) + 4, f"{y:.0f}", "end"))
        start, end = place(10.0**low, y), place(10.0**high, y)
        parts.append(f'<polyline points="{start} {end}" stroke="#ddd" fill="none"/>')
    for line, colour in zip(lines, COLOURS, strict=False):
        path = " ".join(place(x, y) for x, y in line.points)
        parts.append(f'<polyline points="{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        _, y = map(float, place(*line.points[-1]).split(","))
        parts.append(_text(WIDTH - RIGHT + 8, y + 4, line.name, "start", colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
