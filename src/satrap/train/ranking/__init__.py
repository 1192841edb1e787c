"""Ranking metrics of evaluations: the lists, the vectors of items, and the ranks."""
