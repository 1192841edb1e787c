"""Manifests as a reader of their YAML sees them, and the recipes they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from satrap.config import load
from satrap.tools.deploy import DeployRequest, kubernetes

ROOT = Path(__file__).parents[3]
RECIPES = [
    ROOT / "src/satrap/quickstart/goodbooks.yaml",  # that of the examples names files outside of its folder
    *sorted(
        path
        for path in (ROOT / "examples/recipes").glob("*.yaml")
        if path.stem != "goodbooks" and "sampled_softmax" not in path.read_text(encoding="utf-8")
    ),  # a loss of pairs has no loaders
]
NEEDED = ["embedding.memory=1GiB", "checkpoint.every_steps=1000"]
Object = dict[str, Any]


def objects(recipe: Path, *settings: str, **asked: Any) -> dict[str, Object]:
    """The objects by kind, as a reader of the YAML sees them."""
    request = DeployRequest(**({"name": "run", "image": "satrap:1", "data_claim": "data"} | asked))
    text = kubernetes(load(recipe, settings), request)
    return {one["kind"]: one for one in YAML(typ="safe", pure=True).load_all(text)}
