"""`satrap models`: the models, their needs, arguments and presets."""

from satrap.tools.catalog.listing import listed, shown
from satrap.tools.catalog.model_info import ModelArgument, ModelInfo, about, catalog

__all__ = ["ModelArgument", "ModelInfo", "about", "catalog", "listed", "shown"]
