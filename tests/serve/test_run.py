"""Runs that are not served, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from satrap.launch.folder.run_folder import RunFolder
from satrap.serve import run as running
from tests.cli.command import satrap


def test_what_cannot_be_served_is_refused_before_rows_are_read(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    satrap("serve", tmp_path).assert_refused("not a run folder")
    satrap("serve", run.path, "--listen", "0.0.0.0:0").assert_refused(
        "the server has no key", "satrap key FILE"
    )
    satrap("serve", run.path, "--listen", "nowhere").assert_refused("'nowhere'")
    for name in ("max_items", "max_bytes", "max_queue", "deadline"):
        satrap("serve", run.path, "--set", f"serving.{name}=0").assert_refused(f"serving.{name}")
    satrap("serve", run.path, "--set", "training.epochs=3").assert_refused("training.epochs")
    key = tmp_path / "key"
    key.write_text("short")
    key.chmod(0o600)
    satrap("serve", run.path, "--key", key).assert_refused("has no key")
    monkeypatch.setattr(running, "NEEDED", ("starlette", "no_such_package"))
    satrap("serve", run.path).assert_refused("no_such_package", "pip install 'satrap[serve]'")


def test_code_of_another_user_runs_only_if_asked_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run.recipe_file.read_text()
    (run.path / "loss.py").write_text("def loss(logits, labels): raise SystemExit('it ran')")
    run.recipe_file.write_text(text.replace("training:\n", "training:\n  loss: loss.py:loss\n", 1))
    try:
        monkeypatch.setattr(os, "geteuid", lambda: run.path.stat().st_uid + 1)
        satrap("serve", run.path).assert_refused("belongs to another user", "--trust")
    finally:
        run.recipe_file.write_text(text)
