"""What staleness costs: where training with it diverges, and short runs with and without a warm-up."""
