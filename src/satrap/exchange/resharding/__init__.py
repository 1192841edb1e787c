"""Moves of buckets between shards: which buckets, and how their rows get there."""
