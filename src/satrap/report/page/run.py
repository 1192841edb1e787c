"""What the report knows of a run: plain numbers, without any drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from satrap.report.history import finite

VALUES_OF_LABEL = ("column", "kind", "positive", "threshold", "classes", "mask")
"""Keys of a label that decide its values; others are about how it is learned."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table in the files of the trained model, or of the newest full snapshot.

    Args:
        rows: rows in the files.
        bytes: size of these files: ids, weights and optimizer state.
    """

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LabelCurves:
    """How the predictions of one label compare with its values on the scored rows.

    Args:
        auc: area under the ROC curve.
        roc: (false positive rate, true positive rate), both rising from 0 to 1.
        calibration: (mean prediction, share of positives) of groups of about equal weight.
    """

    auc: float
    roc: Points
    calibration: Points


@dataclass(frozen=True, slots=True)
class Scores:
    """What a scoring pass found.

    Args:
        part: the rows that were scored: "validation" or "test".
        rows: how many.
        labels: binary label -> curves.
        sampled: rows, out of these, on which features were permuted.
        base: metrics of the sampled rows as they are.
        permuted: feature -> metrics of the same rows with the values of this feature, and of all others made
            from its column, in random order.
        groups: feature of `permuted` -> all features made from its column, if it is not the only one.
    """

    part: str
    rows: int
    labels: Mapping[str, LabelCurves] = field(default_factory=dict)
    sampled: int = 0
    base: Mapping[str, float] = field(default_factory=dict)
    permuted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run as the report shows it; whatever is not known is empty, and `missing` says why.

    Args:
        name: the folder, as it was given.
        recipe: dotted key -> value, of the complete recipe.
        recipe_text: the recipe's file.
        sessions: what each process that trained wrote first: time, versions, machine.
        metrics: content of `metrics.json`.
        curves: name -> (step, value); validation metrics are called `validation/auc` and so on.
        tables: table -> size.
        scores: None without a scoring pass.
        missing: sentences about what is left out.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipe_text: str = ""
    sessions: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Points] = field(default_factory=dict)
    tables: Mapping[str, TableSize] = field(default_factory=dict)
    scores: Scores | None = None
    missing: Sequence[str] = ()

    def about(self, key: str) -> Any:
        """Return `about.<key>` of the recipe, None if it does not say."""
        return self.recipe.get(f"about.{key}")

    def floor(self) -> dict[str, float]:
        """Return metric -> what a logistic regression reaches on the test rows, as the recipe says."""
        return {
            key.removeprefix("about.floor."): v for key, v in self.recipe.items() if "about.floor." in key
        }

    def unlike(self, other: RunReport, part: str) -> str:
        """Return in what the evaluations of two runs differ: "rows" or "labels", "" if nothing is known.

        Args:
            other: the other run.
            part: "test" or "validation".
        """
        if _labels(self.recipe) != _labels(other.recipe):
            return "labels"
        counts, others = (_counts(run.metrics.get(part) or {}) for run in (self, other))
        titles = self.about("title"), other.about("title")
        known = [(counts, others), (_split(self.recipe), _split(other.recipe)), titles]
        return "rows" if any(a and b and a != b for a, b in known) else ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data, with None for numbers that are not finite."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _labels(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the labels of a recipe say about their values."""
    labels = [
        {"name": label} if isinstance(label, str) else dict(label) for label in recipe.get("labels") or ()
    ]
    return [
        {"column": label["name"], "kind": "binary"}
        | {k: v for k, v in label.items() if k in VALUES_OF_LABEL and v is not None}
        for label in labels
    ]


def _split(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: v for key, v in recipe.items() if key.startswith("data.split.") and v is not None}


def _counts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {key: v for key, v in metrics.items() if key.rpartition("/")[2] in ("samples", "positives")}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return finite(value)


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """Return dotted key -> value for nested mappings; lists stay values."""
    if not isinstance(values, Mapping):
        return {path: values}
    return {
        k: v
        for key, inner in values.items()
        for k, v in flat(inner, f"{path}.{key}" if path else str(key)).items()
    }
