"""Readers of CSV, Parquet, Arrow and in-memory rows, and the column conversions that they share."""
