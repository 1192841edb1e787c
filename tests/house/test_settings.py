"""Settings: the set of recipe keys is frozen, and rules about pairs of settings are in one table.

To add or change a key on purpose, or a rule: `python -m tests.house.test_settings` writes both files.
"""

from __future__ import annotations

from pathlib import Path

from satrap import compatibility
from satrap.config.explain import walk
from satrap.config.show import written_default
from satrap.config.source import dotted

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("recipe_keys.txt")
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
RULES = "cannot be combined"

LIVE = {
    "compatibility.py": "the table",
    "config/checks/processes.py": "a list of addresses against its own number",
    "dense/backends/sharded.py": "an optimizer is tried",
    "dense/compute/support.py": "looks for batch normalization in a network",
    "exchange/lookahead.py": "an exchange that pools rows",
    "exchange/wrappers/broadcast.py": "an exchange tells its peers what it is",
    "schema.py": "the fields of one feature",
    "sequences.py": "the fields of one feature",
    "settings/tier.py": "the eviction of a store",
}
"""Modules that refuse a combination themselves, and what object they need for it."""


def keys() -> str:
    """Return one line for each recipe key: its dotted name and its default."""
    lines = [
        f"{dotted((*pattern, key))} = {written_default(info)}"
        for pattern, model in walk()
        for key, info in model.model_fields.items()
    ]
    return "\n".join(sorted(set(lines))) + "\n"


def page() -> str:
    """Return the page of the documentation with the table of rules."""
    head = PAGE.read_text(encoding="utf-8").partition("| setting |")[0]
    return head + compatibility.markdown()


def test_the_set_of_recipe_keys_is_frozen() -> None:
    assert keys() == FROZEN.read_text(encoding="utf-8"), "a new key needs a reason; see the module"


def test_the_documentation_shows_the_rules() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "see the module"


def test_pairs_of_settings_are_refused_in_one_place() -> None:
    source = ROOT / "src" / "satrap"
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if RULES in path.read_text(encoding="utf-8")
    }
    assert found == set(LIVE)


def test_recipes_are_made_into_objects_in_a_few_lines() -> None:
    build = (ROOT / "src" / "satrap" / "launch" / "build.py").read_text(encoding="utf-8")
    assert len(build.splitlines()) <= 120


if __name__ == "__main__":
    FROZEN.write_text(keys(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
