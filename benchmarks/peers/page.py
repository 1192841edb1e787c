"""The table of a kept file as Markdown, and `docs/speed.md`, which has such tables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "speed.md"
HEAD = (
    "| compared with | CPU ms of a step, satrap | the other | the other to satrap "
    "| wall ms, satrap | the other | the other to satrap |\n| --- | --- | --- | --- | --- | --- | --- |"
)
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
"""The place of a kept file's table in a page; the path is from the root of the repository."""
BUSY = 0.5
"""Load before the first line from which a machine is busy, an average over a minute."""


def row(measured: dict[str, Any]) -> str:
    """Return a line of the table; a peer that is missing has the reason in it."""
    if "cpu_ms" not in measured:
        return f"| {measured['line']} | not measured: {measured['reason']} | | | | | |"
    cells = [measured["line"]]
    for clock in ("cpu_ms", "wall_ms"):
        times = measured[clock]
        low, high = times["ratios"][0], times["ratios"][-1]
        cells += [f"{times['satrap']:.1f}", f"{times['peer']:.1f}"]
        cells.append(f"**{times['ratio']:.2f}** ({low:.2f} to {high:.2f})")
    return f"| {' | '.join(cells)} |"


def table(path: Path) -> str:
    """Return a kept file's table, below a sentence about when and where it was measured."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    parameters, machine = kept["parameters"], kept["machine"]
    load, loads = parameters["load_before"], [measured["load"] for measured in kept["results"].values()]
    state = "otherwise idle" if load < BUSY else f"**busy**: load {min(loads):.0f} to {max(loads):.0f}"
    intro = (
        f"{kept['date'][:10]}, {machine['cores']} cores of an {machine['processor']}, {state}; PyTorch "
        f"{machine['packages']['torch']}, {parameters['turns']} turns of each side "
        f"([raw figures]({os.path.relpath(path, PAGE.parent)}))."
    )
    return "\n".join([intro, "", HEAD, *map(row, kept["results"].values())]) + "\n"


def filled(text: str) -> str:
    """Return a page with the table of each block made again from its file."""
    return BLOCK.sub(lambda match: match[1] + "\n" + table(ROOT / match[2]) + "\n" + match[4], text)


def write() -> None:
    """Write `docs/speed.md` again."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
