"""Rows for which memory has no room, in a file: `Tier` says where, `Cold` keeps those of one table group."""

from satrap.store.tier.ahead import Ahead
from satrap.store.tier.cold import Cold, Fetched
from satrap.store.tier.settings import Tier

__all__ = ["Ahead", "Cold", "Fetched", "Tier"]
