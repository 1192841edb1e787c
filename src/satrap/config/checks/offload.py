"""Checks the keys of `dense.offload`."""

from collections.abc import Iterator

from satrap.config.keys.sections import Sections
from satrap.config.source import RecipeSource
from satrap.errors import ConfigError


def check_offload(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for an offload that other keys do not support, or that has no effect."""
    offload, training = sections.dense.offload, sections.training
    if offload is None:
        return
    disk = offload.optimizer == "disk"
    for wrong, what, why, fix in (
        (
            training.mode == "async",
            "cannot be combined with training.mode: async",
            "in async mode the optimizer state is in the embedding store",
            "remove dense.offload, or use mode hybrid or sync",
        ),
        (
            not disk and training.device == "cpu",
            "with optimizer: cpu has no effect on training.device: cpu",
            "on training.device: cpu the optimizer state is already in host memory",
            "remove dense.offload, or set optimizer to disk",
        ),
        (
            disk and offload.folder is None,
            "with optimizer: disk needs a folder",
            "the optimizer state is stored in files of this folder",
            "set dense.offload.folder to a folder on a fast disk",
        ),
        (
            not disk and offload.folder is not None,
            "with optimizer: cpu takes no folder",
            "with optimizer: cpu the state is in host memory",
            "remove dense.offload.folder, or set optimizer to disk",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"dense.offload {what}", where=source.where(("dense", "offload")), why=why, fix=fix
            )
    for key in _against_weights(sections) if offload.weights else ():
        raise ConfigError(
            f"dense.offload with weights: true cannot be combined with {key}",
            where=source.where(("dense", "offload")),
            why="this combination is not supported yet",
            fix=f"remove {key}, or weights",
        )


def _against_weights(sections: Sections) -> Iterator[str]:
    """Yield the settings that weights off the device do not support."""
    dense = sections.dense
    if dense.mesh.tensor * dense.mesh.pipeline > 1:
        yield "dense.mesh.tensor" if dense.mesh.tensor > 1 else "dense.mesh.pipeline"
    if dense.sharded and sections.shares > 1:
        yield "dense.sharded"
    if dense.compile:
        yield "dense.compile"
    if sections.training.device == "cpu":
        return
    device = f"on training.device: {sections.training.device}"
    if sections.shares > 1:
        yield f"several workers {device}"
    if dense.precision != "float32":
        yield f"dense.precision: {dense.precision} {device}"
    if dense.checkpoint_activations:
        yield f"dense.checkpoint_activations {device}"
