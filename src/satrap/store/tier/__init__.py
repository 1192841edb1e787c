"""Rows that do not fit in fast memory: `Tier` holds the settings, `Tiered` is the backend."""

from satrap.settings.tier import Tier
from satrap.store.tier.cold import fitting_records, most_records
from satrap.store.tier.tiered import Tiered

__all__ = ["Tier", "Tiered", "fitting_records", "most_records"]
