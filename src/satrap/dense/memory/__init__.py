"""Less device memory: recomputed activations, offloaded optimizers and weights, initial weights."""
