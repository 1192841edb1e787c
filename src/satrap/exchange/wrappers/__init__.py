"""Exchanges around exchanges: tables in several places, rows for peers, rows of a snapshot."""
