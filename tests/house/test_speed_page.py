"""The tables of docs/speed.md are those of kept files, and the comparison with peers computes them right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import __main__ as peers
from benchmarks.peers import environments, page
from benchmarks.peers.sides import Turn

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_the_tables_of_the_page_are_those_of_the_kept_files() -> None:
    assert page.BLOCK.search(TEXT)
    assert page.filled(TEXT) == TEXT, "python -m benchmarks.peers --page"


def test_every_kept_comparison_is_on_the_page() -> None:
    kept = {path.relative_to(page.ROOT).as_posix() for path in peers.RESULTS.glob("2*.json")}
    assert {match[2] for match in page.BLOCK.finditer(TEXT)} == kept


def test_a_changed_figure_is_noticed() -> None:
    ratio = re.search(r"\*\*(\d+\.\d\d)\*\*", TEXT)
    assert ratio is not None
    changed = TEXT[: ratio.start(1)] + "99.99" + TEXT[ratio.end(1) :]
    assert page.filled(changed) == TEXT


def test_medians_and_the_ratios_of_pairs_of_turns() -> None:
    satrap = [Turn(10.0, 20.0, {}), Turn(20.0, 40.0, {}), Turn(40.0, 40.0, {})]
    peer = [Turn(30.0, 20.0, {}), Turn(20.0, 60.0, {}), Turn(80.0, 20.0, {})]
    figures = peers.summary(satrap, peer)
    assert (figures["cpu_ms"]["satrap"], figures["cpu_ms"]["peer"]) == (20.0, 30.0)
    assert figures["cpu_ms"]["ratios"] == [1.0, 2.0, 3.0]  # 30/10, 20/20, 80/40
    assert (figures["cpu_ms"]["ratio"], figures["wall_ms"]["ratio"]) == (2.0, 1.0)
    expected = "| a | 20.0 | 30.0 | **2.00** (1.00 to 3.00) | 40.0 | 20.0 | **1.00** (0.50 to 1.50) |"
    assert page.row({"line": "a", **figures}) == expected


def test_a_peer_that_cannot_be_installed_is_a_line_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = environments.Environment("none", (), ("no-such-package-of-satrap==0",), "no_such_module")
    (tmp_path / "none" / "bin").mkdir(parents=True)
    python = tmp_path / "none" / "bin" / "python"
    python.write_text("#!/bin/sh\necho no matching distribution >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    with pytest.raises(environments.PeerMissingError, match="no matching distribution"):
        missing.python()
    measured: dict[str, Any] = {"line": "it", "reason": "no matching distribution"}
    assert page.row(measured) == "| it | not measured: no matching distribution | | | | | |"
