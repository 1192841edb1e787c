"""`satrap init`: makes a recipe from data and explains each choice."""

from satrap.init.recipe import Request, make_recipe

__all__ = ["Request", "make_recipe"]
