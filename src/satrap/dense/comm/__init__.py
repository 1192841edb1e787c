"""Processes that train together, and what they send: all-reduce, compressed gradients."""
