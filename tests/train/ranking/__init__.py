"""Ranking metrics of evaluations."""
