"""Rows at one moment: cuts, deltas and the index, read while the store changes."""
