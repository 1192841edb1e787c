"""Models that read the events of a history."""
