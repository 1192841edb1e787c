"""Rows that do not fit in memory, in a file: `Tier` holds the settings, `Tiered` is the backend."""

from satrap.settings.tier import Tier
from satrap.store.tier.cold import most_records
from satrap.store.tier.tiered import Tiered

__all__ = ["Tier", "Tiered", "most_records"]
