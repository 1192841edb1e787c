"""Measurements behind the claims: each a module to run, with its raw results next to it."""
