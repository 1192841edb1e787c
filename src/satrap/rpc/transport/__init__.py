"""Connections over TCP that carry lists of raw parts, bounded in every direction, encrypted with a key."""
