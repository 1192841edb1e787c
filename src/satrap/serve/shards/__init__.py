"""Served rows in shards: their processes, and the server's connections to them."""
