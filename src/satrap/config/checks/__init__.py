"""Combinations of keys that are refused, and why."""
