"""The compiled loops of the store (Numba): index, rows, optimizers, unique ids, pooling."""
