"""The tables of a report, read back as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from satrap.tools.report_page.element import Html


def rows(found: Sequence[Html]) -> list[list[str]]:
    """Return the cells of a section's tables, row by row, as text."""
    texts = []
    for row in re.findall(r"<tr>(.*?)</tr>", "".join(found)):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        texts.append([re.sub(r"<[^>]+>", "", cell) for cell in cells])
    return texts
