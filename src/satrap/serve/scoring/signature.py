"""The columns of requests, and the names of the values in their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from satrap.data.encode.encoder import needed_columns
from satrap.schema import Schema, Vector
from satrap.serve.scoring.encoder import RequestEncoder


class Signature:
    """The columns of requests for scores, or for the vectors of a tower, and the names of their answers.

    Args:
        name: name for clients, also in the Open Inference Protocol.
        schema: the features, without labels.
        missing: texts that mean "missing", as in training.
        outputs: names of the values of a row.
        score_bytes: bytes of each number of an answer: 4, or 8 for float64.

    Attributes:
        name, outputs, score_bytes: the arguments.
        encoder: turns requests into ids and numbers.
        columns, known: names of the columns that each request must have, in order and as a set.
        numbers: the columns that hold numbers.
        lists: the columns that hold several values.
        vectors: whether the only output is a vector of each row.
    """

    vectors = False

    def __init__(
        self, name: str, schema: Schema, missing: Sequence[str], outputs: Sequence[str], score_bytes: int
    ) -> None:
        self.name, self.outputs, self.score_bytes = name, list(outputs), score_bytes
        self.encoder = RequestEncoder(schema, missing)
        ids, self.numbers = needed_columns(schema)
        self.lists = set(_list_columns(schema))
        self.columns = [*ids, *(name for name in self.numbers if name not in ids)]
        self.known = frozenset(self.columns)

    def kinds(self) -> dict[str, str]:
        """Return column -> the kind of its values, as words for users."""
        kinds = {name: "number" if name in self.numbers else "id" for name in self.columns}
        return {name: f"list of {kind}s" if name in self.lists else kind for name, kind in kinds.items()}


def _list_columns(schema: Schema) -> Iterator[str]:
    for name, feature in schema.features.items():
        if isinstance(feature, Vector) or feature.sequence or getattr(feature, "multi", False):
            yield feature.column or name
            if weights := getattr(feature, "weights", None):
                yield weights
