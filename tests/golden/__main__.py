"""`python -m tests.golden FOLDER [NAME...]`: write what runs leave now, by default all of them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.runs import NAMES, run
from tests.support import forked


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as place:
            run(name, Path(place)).write(folder / f"{name}.txt")
        print(folder / f"{name}.txt", flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    forked.install()
    main(Path(sys.argv[1]), sys.argv[2:])
