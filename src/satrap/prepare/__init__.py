"""Raw files as Parquet files of ids and numbers that train faster, to the same result."""

from satrap.prepare.prepare import Prepared, Progress, prepare

__all__ = ["Prepared", "Progress", "prepare"]
