"""The cost of staleness: where training with it diverges, and short runs with and without a warm-up."""
