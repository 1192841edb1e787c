"""Less device memory: recomputed activations, offloaded optimizers and weights, deferred initialization."""
