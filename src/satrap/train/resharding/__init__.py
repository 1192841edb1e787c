"""Requests to move rows between shards while a run trains, and their execution."""
