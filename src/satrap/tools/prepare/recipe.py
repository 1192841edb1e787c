"""The recipe of prepared files."""

from __future__ import annotations

from pathlib import Path

from satrap.config import Recipe, load, to_yaml
from satrap.config.edit import edited, written
from satrap.errors import ConfigError
from satrap.launch.datasets import PARTS
from satrap.launch.folder.run_folder import write_whole
from satrap.tools.prepare.parts import TEMPORARY

RECIPE = "recipe.yaml"


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write the recipe of prepared files to their folder: the original with other data files.

    Comments are kept, unless the recipe uses YAML that cannot be edited, such as an alias for a value used
    twice. The format of text files is kept, for raw files that the model will score; prepared files include
    the joined columns.
    """
    values = written(recipe, recipe)
    data = values["data"]
    for key in ("format", "join"):
        data.pop(key, None)
    for part in PARTS:
        if data.get(part) is not None:
            data[part] = f"{part}/*.parquet"
    about = values.get("about") or {}
    about.pop("md5", None)
    head = f"# Written by satrap prepare from {recipe.source.file}; the rows are in this folder.\n"
    target = folder / RECIPE
    draft = folder / f"{RECIPE}{TEMPORARY}"
    try:
        text = edited(Path(recipe.source.file).read_text(encoding="utf-8"), values)
        write_whole(draft, head + text)
        if load(draft).source.values != values:
            raise ConfigError("an alias")
        draft.replace(target)
    except (ConfigError, OSError):
        draft.unlink(missing_ok=True)
        write_whole(target, head + to_yaml(values))
