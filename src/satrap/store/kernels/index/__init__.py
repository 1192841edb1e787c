"""The hash index of a table: entries, growth and memory layout (Numba)."""
