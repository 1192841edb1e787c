"""Recipes: one complete configuration as a YAML file, checked key by key.

`load` reads a recipe. `keys.py` and `cluster.py` define and document every key; `satrap config --keys` prints
the keys.
"""

from satrap.config.explain import unknown_value
from satrap.config.recipe import Recipe, load, without_data
from satrap.config.show import annotated, origins, reference, to_yaml

__all__ = ["Recipe", "annotated", "load", "origins", "reference", "to_yaml", "unknown_value", "without_data"]
