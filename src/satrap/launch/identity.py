"""Who a run is to the shards: its identity, and how often its workers were started."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from satrap.launch.folder import write_whole


@dataclass
class Identity:
    """The identity of a run and the number of its newest generation of workers, kept in its folder.

    Shards that outlive a killed launcher still serve its run. They take the resumed run for the same one, and
    its workers for a newer generation.

    Args:
        file: where it is kept.
        run: other runs have others.
        generation: -1 before the first workers are started.
    """

    file: Path
    run: str
    generation: int = -1

    @classmethod
    def of(cls, file: Path) -> Self:
        """Return the identity that the file holds, or a new one if there is no file."""
        if file.exists():
            return cls(file, **json.loads(file.read_text(encoding="utf-8")))
        return cls(file, secrets.token_hex(8))

    def next(self) -> int:
        """Return the number of the next generation, once it is written down."""
        self.generation += 1
        plain = {name: value for name, value in asdict(self).items() if name != "file"}
        write_whole(self.file, json.dumps(plain) + "\n")
        return self.generation
