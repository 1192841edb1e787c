from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.tools.deploy.request import DeployRequest, name_of


@pytest.mark.parametrize("name", ["", "A", "1st", "a_b", "a-", "a.b", "a" * 41])
def test_names_that_kubernetes_refuses(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name in Kubernetes"):
        DeployRequest(name=name, image="satrap:1")


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("goodbooks", "goodbooks"),
        ("My Run_2", "my-run-2"),
        ("2026", "run-2026"),
        ("é", "run"),
        ("a" * 60, "a" * 40),
        ("1" * 60, "run-" + "1" * 36),
        ("-a--b-", "a-b"),
    ],
)
def test_any_recipe_has_a_name(recipe: str, name: str) -> None:
    assert DeployRequest(name=name_of(recipe), image="satrap:1").name == name
