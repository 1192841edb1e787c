"""One training step: agreement of the workers, microbatches, loss, phase times."""
