"""Identity of a run for the shards, and the generation of its workers."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from satrap.launch.folder.run_folder import write_whole


@dataclass
class Identity:
    """The identity of a run and its newest generation of workers, saved in the run folder.

    Shards that outlive a killed launcher still serve its run: a resumed run has the same identity, and its
    workers have a newer generation.

    Args:
        file: the file with the identity.
        run: unique id of the run.
        generation: -1 before the first workers are started.
    """

    file: Path
    run: str
    generation: int = -1

    @classmethod
    def of(cls, file: Path) -> Self:
        """Return the identity in the file, or a new one without a file."""
        if file.exists():
            return cls(file, **json.loads(file.read_text(encoding="utf-8")))
        return cls(file, secrets.token_hex(8))

    def next(self) -> int:
        """Save and return the number of the next generation."""
        self.generation += 1
        plain = {name: value for name, value in asdict(self).items() if name != "file"}
        write_whole(self.file, json.dumps(plain) + "\n")
        return self.generation
