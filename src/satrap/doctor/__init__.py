"""Checks a machine, and a recipe on it, before a run: `satrap doctor`."""

from satrap.doctor.examine import examine
from satrap.doctor.finding import Finding

__all__ = ["Finding", "examine"]
