"""`satrap init`: makes a recipe from data and explains each choice."""

from satrap.tools.init.recipe import InitRequest, make_recipe

__all__ = ["InitRequest", "make_recipe"]
