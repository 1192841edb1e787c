"""The compiled loops of the store: index, rows, optimizers, distinct ids, pooling (Numba)."""
