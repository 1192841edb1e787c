"""The run whose weights and rows a new run starts with."""

from __future__ import annotations

from dataclasses import dataclass

from satrap.runtime.arguments import checked


@checked()
@dataclass(frozen=True, slots=True)
class WarmStart:
    """A run whose weights and rows a new run starts with, instead of random ones.

    Args:
        url: folder or URL of the run, of a saved model, of a snapshot or of a feed. Taken are weights of the
            network with the same name and shape, rows of tables with the same name, dim and ids, and, by
            recipes, statistics of unchanged features and labels. All else starts fresh, and is reported.
        state: also take the optimizer state: of tables whose optimizer has the same name, and of the network
            if its weights are all the same and its optimizer has the same name.
    """

    url: str
    state: bool = False
