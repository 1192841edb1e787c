"""`satrap init`: from data to a recipe that says why."""

from satrap.init.recipe import Request, make_recipe

__all__ = ["Request", "make_recipe"]
