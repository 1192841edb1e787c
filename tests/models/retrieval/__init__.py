"""Models that compare vectors of users and items."""
