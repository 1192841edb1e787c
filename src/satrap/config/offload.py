"""Checks where the optimizer of the dense network is to be."""

from satrap.config.keys import Sections
from satrap.config.source import Source
from satrap.errors import ConfigError


def check_offload(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for an offload that does not go with other keys, or has no effect."""
    offload, training = sections.dense.offload, sections.training
    if offload is None:
        return
    disk = offload.optimizer == "disk"
    for wrong, what, why, fix in (
        (
            training.mode == "async",
            "does not go with training.mode: async",
            "the state of its optimizer is rows of the store",
            "remove dense.offload, or use mode hybrid or sync",
        ),
        (
            not disk and training.device == "cpu",
            "with optimizer: cpu has no effect on training.device: cpu",
            "the optimizer is in host memory already",
            "remove dense.offload, or set optimizer to disk",
        ),
        (
            disk and offload.folder is None,
            "with optimizer: disk needs a folder",
            "the state is in files",
            "set dense.offload.folder to a folder on a fast disk",
        ),
        (
            not disk and offload.folder is not None,
            "with optimizer: cpu needs no folder",
            "the state is in memory",
            "remove dense.offload.folder, or set optimizer to disk",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"dense.offload {what}", where=source.where(("dense", "offload")), why=why, fix=fix
            )
