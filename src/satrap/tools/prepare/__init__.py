"""`satrap prepare`: converts raw files to Parquet files of ids and numbers that train faster."""

from satrap.tools.prepare.prepare import Prepared, PrepareProgress, prepare

__all__ = ["PrepareProgress", "Prepared", "prepare"]
