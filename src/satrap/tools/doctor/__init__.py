"""`satrap doctor`: checks a machine, and optionally a recipe on it, before a run."""

from satrap.tools.doctor.examine import examine
from satrap.tools.doctor.finding import Finding

__all__ = ["Finding", "examine"]
