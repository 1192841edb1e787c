"""Rows in the memory of a GPU."""
