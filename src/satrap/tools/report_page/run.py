"""Data of a run for the report: plain numbers, without drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from satrap.report.history import finite

VALUES_OF_LABEL = ("column", "kind", "positive", "threshold", "classes", "mask")
"""Keys of a label that determine its values; other keys concern training."""
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
    """Comparison of one label's predictions with its values on the scored rows.

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
    """Result of scoring rows for the report.

    Args:
        part: the scored rows: "validation" or "test".
        rows: number of scored rows.
        labels: binary label -> curves.
        sampled: number of these rows on which features were permuted.
        base: metrics of the sampled rows, unpermuted.
        permuted: feature -> metrics of the same rows with the values of this feature, and of other features
            from its column, in random order.
        groups: feature of `permuted` -> all features from its column, if there are others.
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
    """One run as shown in the report; unknown data is empty, and `missing` has the reasons.

    Args:
        name: the folder, as given by the user.
        recipe: dotted key -> value, of the complete recipe.
        recipe_text: the recipe's file.
        sessions: first record of each training process: time, versions, machine.
        metrics: content of `metrics.json`.
        curves: name -> (step, value); validation metrics are named `validation/auc` and so on.
        tables: table -> size.
        scores: None if no rows were scored.
        missing: sentences about missing content.
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
        """Return `about.<key>` of the recipe, None if it is not set."""
        return self.recipe.get(f"about.{key}")

    def floor(self) -> dict[str, float]:
        """Return metric -> value of a logistic regression on the test rows, from the recipe."""
        return self._expected("about.floor.")

    def baseline(self) -> dict[str, float]:
        """Return metric -> value of LightGBM on the validation rows, from the recipe."""
        return self._expected("about.baseline.")

    def _expected(self, prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in self.recipe.items() if prefix in key}

    def unlike(self, other: RunReport, part: str) -> str:
        """Return the difference between two runs' evaluations: "rows" or "labels", "" if none is known.

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
        return {key: plain(value) for key, value in asdict(self).items()}


def _labels(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the keys of a recipe's labels that determine their values."""
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


def plain(value: Any) -> Any:
    """Return plain data as JSON has it: lists for tuples, None for numbers that are not finite."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
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
