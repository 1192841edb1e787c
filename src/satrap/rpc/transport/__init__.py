"""Connections over TCP that carry lists of raw parts, with limits, encrypted with a key."""
