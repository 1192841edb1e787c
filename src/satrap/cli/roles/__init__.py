"""Commands that start one process of a run."""
