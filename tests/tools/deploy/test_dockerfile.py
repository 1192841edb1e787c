"""The image and the manifests agree. Nothing here builds the image."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from satrap.tools.deploy.manifests import USER
from satrap.tools.deploy.recipe import SHARD_METRICS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")


def test_user_entry_point_and_health_are_those_of_the_manifests() -> None:
    final = TEXT[TEXT.rindex("FROM ") :]
    assert f"USER {USER}:{USER}\n" in final
    assert f"http://127.0.0.1:{SHARD_METRICS}/ready" in final
    assert final.endswith('ENTRYPOINT ["satrap"]\n')


def test_what_is_copied_is_there_and_sent() -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [shlex.split(line)[1:-1] for line in re.findall(r"^COPY (?!--from).*$", TEXT, re.MULTILINE)]
    names = [name for line in copied for name in line]
    assert names == ["pyproject.toml", "README.md", "LICENSE", "src"]
    assert all((ROOT / name).exists() and f"!{name}" in sent for name in names)


def test_torch_is_the_one_that_satrap_asks_for() -> None:
    (asked,) = re.findall(r'"(torch>=[^"]+)",', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f'"{asked}"' in TEXT


def test_both_stages_begin_with_the_base_that_was_asked_for() -> None:
    assert re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) == ["$BASE", "$BASE"]
    assert TEXT.index("ARG BASE=python:3.") < TEXT.index("FROM ")
