"""All errors that satrap raises, as one tree.

```
SatrapError
├── ConfigError        the recipe or a schema is invalid
├── DataError          a file, column or value cannot be used
├── StoreError         the embedding store rejects a request
├── CheckpointError    a saved run cannot be read or written
├── TrainingError      a run had to stop (for example because of non-finite losses)
└── ExchangeError      a peer did not respond correctly
```

`ConfigError` and `DataError` report invalid user input (exit code 2 on the command line). The others report
failures of a run (exit code 1).
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class SatrapError(Exception):
    """Base of all errors that satrap raises on purpose.

    Args:
        what: what happened, one sentence.
        where: file and line, feature, table or host; empty if the call itself is the place.
        why: why it matters; may be empty.
        fix: what to do; may be empty.

    `str(error)` joins the parts that are given, one per line: at most four lines.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if why:
            lines.append(f"  why it matters: {why}")
        if fix:
            lines.append(f"  what to do: {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the four parts when the error crosses a process or thread pool."""
        return _rebuild, (type(self), self.what, self.where, self.why, self.fix)


def _rebuild(kind: type[SatrapError], what: str, where: str, why: str, fix: str) -> SatrapError:
    return kind(what, where=where, why=why, fix=fix)


class ConfigError(SatrapError):
    """A recipe, schema or argument is invalid or unknown. Exit code 2."""


class DataError(SatrapError):
    """A file, column or value of the user's data cannot be used. Exit code 2."""


class StoreError(SatrapError):
    """The embedding store rejected a request; the store is unchanged."""


class CheckpointError(SatrapError):
    """A saved run cannot be read or written."""


class TrainingError(SatrapError):
    """A training run had to stop."""


class OwnCodeError(TrainingError):
    """User code named in a recipe failed; `where` is its file and line."""


class ExchangeError(SatrapError):
    """The exchange between workers and shards failed."""


def did_you_mean(word: object, allowed: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return "did you mean 'nearest'? " for an error about a name, or "" if no name is near.

    Args:
        word: the word that the user wrote.
        allowed: the valid names.
        cutoff: least similarity, 0 to 1, see `difflib.get_close_matches`.
    """
    near = get_close_matches(str(word), list(allowed), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""


def error_values(error: SatrapError) -> dict[str, str]:
    """Return an error as plain data, for another process."""
    kinds = (kind for kind in type(error).__mro__ if kind is SatrapError or "__init__" not in vars(kind))
    parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
    return {"type": next(kinds).__name__, **parts}


def error_of(values: Mapping[str, str]) -> SatrapError:
    """Return the error from its `error_values`; a plain `SatrapError` if its type is unknown."""
    kinds = [SatrapError]
    for kind in kinds:  # the list grows during the loop, to cover the whole tree
        kinds += kind.__subclasses__()
    error = {kind.__name__: kind for kind in kinds}.get(str(values.get("type")), SatrapError)
    what, where, why, fix = (str(values.get(key, "")) for key in ("what", "where", "why", "fix"))
    return error(what, where=where, why=why, fix=fix)
