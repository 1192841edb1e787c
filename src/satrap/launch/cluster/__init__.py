"""Runs in several processes: supervisor, workers, requests to a run."""
