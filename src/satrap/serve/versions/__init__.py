"""Versions of a served model: new ones, old ones, and which one answers."""
