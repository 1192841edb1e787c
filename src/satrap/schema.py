"""Describes samples: labels, features and the tables behind them.

A *feature* is a named input of a sample: a `Categorical` feature is a set of ids that select rows of a
*table*, a `Numeric` feature is one number, a `Vector` feature several. A `Schema` names them all. Readers,
models, stores and predictions use the same schema, so an id means the same row everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from satrap import compatibility
from satrap.errors import ConfigError, did_you_mean
from satrap.id_counts import MOST_FOLDS, IdCounts
from satrap.labels import MAX_DIM as MAX_DIM
from satrap.labels import Kind as Kind
from satrap.labels import Label as Label
from satrap.labels import Loss as Loss
from satrap.labels import binary_label as binary_label
from satrap.labels import check_label
from satrap.optim import LARGEST, SGD, Optimizer
from satrap.retention import Admission, AsStore, Eviction, check_own
from satrap.runtime.arguments import checked
from satrap.runtime.formatting import counted, described, html_table
from satrap.sequences import SequenceGroup, sequence_groups

TimePart = Literal["hour", "weekday", "age"]
Pooling = Literal["sum", "mean", "max", "sqrtn", "none"]
MISSING_ID = 0
"""The id of a missing single-valued categorical: an ordinary row that training may use."""

Dtype = Literal["float32", "bfloat16", "float16"]
"""Number format of a table's weights."""

DTYPES = get_args(Dtype)

TRANSFORMS = ("log1p", "log10", "sqrt", "standardize", "minmax", "quantiles", "clip")
"""Names of the transforms of numbers."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical:
    """A feature whose values are ids (integers or strings) that select embedding rows.

    No vocabulary is needed: any value is hashed to a 64-bit id and its row is created on first use.

    Args:
        dim: width of its rows, 1..4096.
        multi: several values per sample (a bag). Default: exactly one.
        pooling: how a bag becomes one vector: "sum" (default), "mean", "max", "sqrtn" (sum divided by the
            square root of the number of values) or "none" (the model sees every row).
        table: name of the table; features that name the same table share its rows. Default: the feature's
            own name.
        column: column of the data, default the feature's name.
        separator: splits a text value into several, for `multi`.
        cross: two or more columns whose combination is the value.
        boundaries: ascending numbers; the value (a number) is replaced by the index of its interval.
        buckets: replace the id by `1 + id % buckets` (a missing value stays missing), which limits the table,
            but makes ids collide.
        vocabulary: the values that have their own rows; all others share one. Missing values stay missing.
            Default: every value has its own row. Not with `boundaries`, `time` or `cross`.
        max_values: most values to keep per sample, for `multi`.
        keep: the values to keep: the "first" (default) or the "last", for example the latest of a history.
        weights: column with a weight >= 0 for each value, for `multi` with pooling "sum", "mean" (divided by
            the sum of weights) or "sqrtn" (by the root of the sum of their squares); lists, or text that
            `separator` splits. A missing weight is 1.
        weight_separator: splits a text value into value and weight, for example ":" of `rock:3|pop:1`;
            instead of `weights`. A value without it has weight 1.
        time: the column holds times (see `satrap.data.TimeRange`), and the id is their "hour" (0 to 23) or
            "weekday" (0 is Monday); with `boundaries` also "age", the days since 1970. Times with a zone
            count in UTC.
        sequence: name of a sequence, such as a history. All features of a sequence have one value per event,
            in the same order, and `max_values` and `keep` of one feature apply to all. Missing values are
            kept. For `multi` with pooling "none".
    """

    dim: int
    multi: bool = False
    pooling: Pooling = "sum"
    table: str | None = None
    column: str | None = None
    separator: str | None = None
    cross: tuple[str, ...] | None = None
    boundaries: tuple[float, ...] | None = None
    buckets: int | None = None
    vocabulary: tuple[str | int, ...] | None = None
    max_values: int | None = None
    keep: Literal["first", "last"] = "first"
    weights: str | None = None
    weight_separator: str | None = None
    time: TimePart | None = None
    sequence: str | None = None

    def __repr__(self) -> str:
        return described(self)


Transform = str | Mapping[str, Any]
MEASURED = MappingProxyType({"measured": True})
"""Marks a field that is measured on the training rows, and that no recipe sets."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLabel:
    """The mean label of an id's training rows, as a number: see `Numeric`.

    Args:
        label: name of a binary label; default: the first one.
        folds: parts of the training rows, 2 to 20, default 5. The number of a training row comes from the
            other parts, so it does not contain the row's own label.
        smoothing: rows with the mean of all training rows that are added to each id, > 0; default 10.
    """

    label: str | None = None
    folds: int = 5
    smoothing: float = 10.0

    def __post_init__(self) -> None:
        if not 2 <= self.folds <= MOST_FOLDS:
            raise ConfigError(f"mean_label: folds must be from 2 to {MOST_FOLDS}, got {self.folds}")
        if not 0 < self.smoothing <= LARGEST:
            raise ConfigError(f"mean_label: smoothing must be > 0, got {self.smoothing}")


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """A feature that is one number per sample, or per event of a sequence.

    With `count` or `mean_label`, the column holds ids, and the number is the frequency of an id in the
    training rows, or its mean label there.

    Args:
        transform: one step or a list of steps, applied in order: "log1p" (log(1 + x) of x = max(number, 0)),
            "log10" (log10(1 + x)), "sqrt"; "standardize" (to mean 0, deviation 1) and "minmax" (to 0 and 1)
            with the statistics of the training data, measured or given as `{"standardize": {"mean": m,
            "std": s}}` and `{"minmax": {"min": a, "max": b}}`; `{"quantiles": n}`, the rank between 0 and
            1 among n quantiles, 2 to 10,000, of the training rows (of 200,000 of them, if there are more),
            measured or given as `{"quantiles": [ascending numbers]}`; `{"clip": [low, high]}`.
        column: column of the data, default the feature's name.
        missing: value of a missing number after the transform; default 0.
        time: the column holds times (see `satrap.data.TimeRange`), and the number is their "hour" (0 to 23),
            "weekday" (0 is Monday) or "age", the days since 1970. Times with a zone count in UTC.
        sequence: name of a sequence of categorical features; the column has one number per event, in lists
            or in text that `separator` splits.
        separator: splits a text value into numbers, for `sequence`; a blank stands for any white space.
        count: "log1p": the number before the transform is log(1 + n), for an id with n training rows.
        mean_label: the number before the transform is the log odds of the mean label of the id's training
            rows; for a row of training, of the rows in other folds. The fold is a hash of the row's
            single values.
        counts: the counts of the training rows, measured by recipes and `satrap.data.measure`.
    """

    transform: Transform | Sequence[Transform] | None = None
    column: str | None = None
    missing: float = 0.0
    time: TimePart | None = None
    sequence: str | None = None
    separator: str | None = None
    count: Literal["log1p"] | None = None
    mean_label: MeanLabel | None = None
    counts: IdCounts | None = field(default=None, metadata=MEASURED)

    def __repr__(self) -> str:
        return described(self)

    def __post_init__(self) -> None:
        steps = self.transform or ()
        for step in [steps] if isinstance(steps, str | Mapping) else steps:
            for name in [step] if isinstance(step, str) else step:
                if name not in TRANSFORMS:
                    raise ConfigError(
                        f"transform {name!r} is unknown",
                        fix=f"{did_you_mean(name, TRANSFORMS)}use {', '.join(TRANSFORMS)}",
                    )

    @property
    def of_ids(self) -> bool:
        """Whether the column holds ids, and the number comes from their counts."""
        return self.count is not None or self.mean_label is not None


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A feature that is `dim` numbers per sample, for example a pretrained embedding of a text or picture.

    The network gets the numbers unchanged, together with the `Numeric` features. A column holds lists of
    `dim` numbers or, with `separator`, text such as `0.5 1 -2` or `[0.5, 1, -2]`. Missing vectors, empty
    lists and missing numbers in a vector become zeros.

    Args:
        dim: numbers per sample, 1..4096.
        column: column of the data, default the feature's name.
        separator: splits a text value into numbers; a blank stands for any white space.
    """

    dim: int
    column: str | None = None
    separator: str | None = None

    def __repr__(self) -> str:
        return described(self)


Feature = Categorical | Numeric | Vector


STILL = SGD(lr=1.0)
"""Placeholder optimizer of frozen tables: it has no state, and no step uses it."""


@checked()
@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one width with one optimizer.

    Args:
        name: name of the table.
        dim: weights per row, 1..4096.
        optimizer: optimizer of its rows; None: the default of the store or trainer.
        initial_scale: rows start uniform in (-initial_scale, initial_scale), as a pure function of
            (seed, table, id); default 0.01.
        dtype: number format of the weights: "float32" (default), or "bfloat16" or "float16", which take half
            the memory. Updates of 16-bit weights are rounded stochastically, so that small ones are not lost.
            Rows are always read as float32, and optimizer state is always float32.
        frozen: its rows never change: they are loaded, their gradients are ignored, and no rows are created.
            An id without a row reads zeros. The table has neither optimizer nor state. Default False.
        memory: the table's own budget in bytes, taken from the store's; the other tables share the rest.
            Default None: the table also shares the rest.
        admission: which of its new ids get a row; None: all. Default "store": the store's admission.
        eviction: which of its rows are evicted once its budget is used up; None: none. Default "store": the
            store's eviction. Without its own budget, a table may lose rows to another table.
    """

    name: str
    dim: int = field(kw_only=True)
    optimizer: Optimizer | None = field(default=None, kw_only=True)
    initial_scale: float = field(default=0.01, kw_only=True)
    dtype: Dtype = field(default="float32", kw_only=True)
    frozen: bool = field(default=False, kw_only=True)
    memory: int | None = field(default=None, kw_only=True)
    admission: Admission | AsStore | None = field(default="store", kw_only=True)
    eviction: Eviction | AsStore | None = field(default="store", kw_only=True)

    def __repr__(self) -> str:
        return described(self)

    def __post_init__(self) -> None:
        where = f"table {self.name!r}"
        if self.frozen:
            optimizer = None if self.optimizer == STILL else self.optimizer
            admission = self.admission not in (None, "store")
            compatibility.check_frozen({"optimizer": optimizer, "admission": admission}, where)
            object.__setattr__(self, "optimizer", STILL)
            object.__setattr__(self, "initial_scale", 0.0)
        check_dim(self.dim, where)
        if not 0 <= self.initial_scale <= LARGEST:
            raise ConfigError(f"{where}: initial_scale must be >= 0 in float32, got {self.initial_scale}")
        check_own(self.memory, where)

    def admission_or(self, general: Admission | None) -> Admission | None:
        """Return the table's admission in a store with this admission; None: all new ids, unless frozen."""
        admission = general if isinstance(self.admission, str) else self.admission
        return None if admission is None or admission.open or self.frozen else admission

    def eviction_or(self, general: Eviction | None) -> Eviction | None:
        """Return the table's eviction in a store with this eviction; None: rows are never evicted."""
        return general if isinstance(self.eviction, str) else self.eviction

    def part(self, shards: int) -> Table:
        """Return the table of one of several shards, with its part of the memory."""
        return self if self.memory is None else replace(self, memory=self.memory // shards)


def check_dim(dim: int, where: str) -> None:
    """Raise `ConfigError` unless `dim` is an integer in 1..4096."""
    if not isinstance(dim, int) or isinstance(dim, bool) or not 1 <= dim <= MAX_DIM:
        raise ConfigError(
            f"{where}: dim must be a whole number from 1 to {MAX_DIM}, got {dim!r}",
            why="a row of this width cannot be stored",
            fix="typical widths are 8 to 128",
        )


@checked(
    labels='write labels=["clicked"], or Label(name="clicked") for a label that is not 0 or 1',
    features='write features={"user": Categorical(dim=16), "price": Numeric()}',
)
class Schema:
    """Labels and features of a data set: the one description readers, models and stores share.

    ```python
    schema = satrap.Schema(
        labels=["clicked"],
        features={
            "user": satrap.Categorical(dim=16),
            "genres": satrap.Categorical(dim=16, multi=True, pooling="mean"),
            "price": satrap.Numeric(transform="log1p"),
        },
    )
    ```

    Args:
        labels: names of 0/1 columns, or `Label` objects, also of numbers and classes; may be empty for
            prediction only.
        features: name -> `Categorical`, `Numeric` or `Vector`, at least one.
        weight: column with a sample weight >= 0, optional.
        group: column whose value groups samples for grouped AUC (for example the user), optional.
        salt: mixed into every id hash; projects with different salts share no ids. Default 0.

    Attributes:
        categorical: the categorical features, in order.
        numeric: the numeric features, in order.
        numeric_columns: numeric or vector feature -> its columns of `Batch.numeric`, in order; numeric
            features of sequences are in `Batch.events` instead.
        sequences: name -> the features of a sequence.

    Raises:
        ConfigError: an unsupported combination; the message names the feature.
    """

    def __init__(
        self,
        labels: Sequence[str | Label],
        features: Mapping[str, Feature],
        *,
        weight: str | None = None,
        group: str | None = None,
        salt: int = 0,
    ) -> None:
        self.labels: tuple[Label, ...] = tuple(
            Label(name=label) if isinstance(label, str) else label for label in labels
        )
        self.features: Mapping[str, Feature] = MappingProxyType(dict(features))
        self.categorical: Mapping[str, Categorical] = MappingProxyType(
            {name: f for name, f in self.features.items() if isinstance(f, Categorical)}
        )
        self.numeric: Mapping[str, Numeric] = MappingProxyType(
            {name: f for name, f in self.features.items() if isinstance(f, Numeric)}
        )
        self.weight, self.group, self.salt = weight, group, salt
        _check(self)
        self.numeric_columns: Mapping[str, slice] = MappingProxyType(_columns(self.features))
        self.sequences: Mapping[str, SequenceGroup] = MappingProxyType(
            sequence_groups(self.categorical, self.numeric)
        )

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in order."""
        return tuple(label.name for label in self.labels)

    @property
    def numeric_width(self) -> int:
        """Columns of `Batch.numeric`: one per numeric feature, `dim` per vector feature."""
        return max((columns.stop for columns in self.numeric_columns.values()), default=0)

    @property
    def outputs(self) -> int:
        """Columns of a model's output: one per label, but one per class of a multiclass label."""
        return sum(label.outputs for label in self.labels)

    def table_of(self, feature: str) -> str:
        """Name of the table that holds the rows of a categorical feature."""
        if feature not in self.categorical:
            near = did_you_mean(feature, self.categorical)
            raise ConfigError(
                f"the schema has no categorical feature {feature!r}", fix=f"{near}name one of the schema"
            )
        return self.categorical[feature].table or feature

    def replace(self, features: Mapping[str, Feature], labels: Sequence[str | Label] | None = None) -> Schema:
        """Return a copy with the given features, and the labels if given, replaced."""
        return Schema(
            self.labels if labels is None else labels,
            {**self.features, **features},
            weight=self.weight,
            group=self.group,
            salt=self.salt,
        )

    def without_labels(self) -> Schema:
        """Return a copy without labels and weight, for scoring data without labels."""
        return Schema((), self.features, group=self.group, salt=self.salt)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `Schema.from_dict`, as stored in checkpoints."""
        return {
            "labels": [asdict(label) for label in self.labels],
            "features": {
                name: {"kind": type(feature).__name__.lower(), **_plain(feature)}
                for name, feature in self.features.items()
            },
            "weight": self.weight,
            "group": self.group,
            "salt": self.salt,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Build a schema from `to_dict` data (lists may stand for tuples, as JSON writes them)."""
        kinds: dict[str, type[Feature]] = {
            "categorical": Categorical,
            "numeric": Numeric,
            "vector": Vector,
        }
        features: dict[str, Feature] = {}
        for name, raw in data["features"].items():
            arguments: dict[str, Any] = {
                k: tuple(v) if k in ("cross", "boundaries", "vocabulary") and v else v for k, v in raw.items()
            }
            if arguments.get("mean_label") is not None:
                arguments["mean_label"] = MeanLabel(**arguments["mean_label"])
            if arguments.get("counts") is not None:
                arguments["counts"] = IdCounts.from_text(arguments["counts"])
            features[name] = kinds[arguments.pop("kind")](**arguments)
        labels = [
            replace(Label(**label), positive=tuple(label["positive"]) if label["positive"] else None)
            for label in data["labels"]
        ]
        return cls(labels, features, weight=data["weight"], group=data["group"], salt=data["salt"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema.from_dict, (self.to_dict(),)  # mapping proxies cannot be pickled

    def __repr__(self) -> str:
        return f"Schema(labels={list(self.label_names)}, features={dict(self.features)})"

    def _repr_html_(self) -> str:
        named = [(label.name, label) for label in self.labels] + [*self.features.items()]
        rows = [(name, *described(part).rstrip(")").split("(", 1)) for name, part in named]
        return html_table(f"Schema: {counted(len(self.features), 'feature')}", rows)


def _plain(feature: Feature) -> dict[str, Any]:
    """Return a feature as plain data; counts are one text."""
    if isinstance(feature, Numeric) and feature.counts is not None:
        return asdict(replace(feature, counts=None)) | {"counts": feature.counts.text}
    return asdict(feature)


def _check(schema: Schema) -> None:
    if not schema.features:
        raise ConfigError("the schema has no features", fix="name at least one column to learn from")
    names = schema.label_names
    if len(set(names)) != len(names):
        raise ConfigError(f"label names are not unique: {list(names)}")
    for label in schema.labels:
        check_label(label)
    for name, feature in schema.features.items():
        if isinstance(feature, Vector):
            check_dim(feature.dim, f"feature {name!r}")
    for name, numeric in schema.numeric.items():
        _check_counted(name, numeric, schema.labels)
    dims: dict[str, tuple[str, int]] = {}
    for name, categorical in schema.categorical.items():
        _check_categorical(name, categorical)
        table = schema.table_of(name)
        first, dim = dims.setdefault(table, (name, categorical.dim))
        if dim != categorical.dim:
            raise ConfigError(
                f"features {first!r} and {name!r} share table {table!r}: "
                f"dims {dim} and {categorical.dim} differ",
                why="all rows of a table have the same width",
                fix="give both the same dim, or separate tables",
            )


def _check_weights(name: str, feature: Categorical) -> None:
    keys = [key for key in ("weights", "weight_separator") if getattr(feature, key) is not None]
    if not keys:
        return
    for wrong, what in (
        (len(keys) == 2, "weight_separator"),
        (not feature.multi, "multi: false"),
        (feature.cross is not None, "cross"),
        (feature.pooling in ("max", "none"), f"pooling: {feature.pooling}"),
    ):
        if wrong:
            raise ConfigError(
                f"feature {name!r}: {keys[0]} cannot be combined with {what}",
                why="weights are factors in a sum over the values of a sample",
            )


def _check_counted(name: str, feature: Numeric, labels: tuple[Label, ...]) -> None:
    """Raise `ConfigError` for a feature of counts that cannot be combined with its other keys, or labels."""
    if not feature.of_ids:
        return
    key = "count" if feature.count else "mean_label"
    for other in ("mean_label", "time", "sequence", "separator"):
        if key != other and getattr(feature, other) is not None:
            raise ConfigError(
                f"feature {name!r}: {key} cannot be combined with {other}",
                why="it makes a number of the one id that a row has in the column",
                fix=f"remove {other}, or make two features of the column",
            )
    if labels and feature.mean_label is not None:
        binary_label(name, feature.mean_label.label, labels)


def _columns(features: Mapping[str, Feature]) -> dict[str, slice]:
    """Return feature -> its columns of `Batch.numeric`."""
    columns, start = {}, 0
    for name, feature in features.items():
        if not isinstance(feature, Categorical) and not (isinstance(feature, Numeric) and feature.sequence):
            columns[name] = slice(start, start + (feature.dim if isinstance(feature, Vector) else 1))
            start = columns[name].stop
    return columns


def _check_vocabulary(name: str, feature: Categorical) -> None:
    words = feature.vocabulary
    if words is not None and (feature.boundaries is not None or feature.time or feature.cross):
        raise ConfigError(f"feature {name!r}: vocabulary cannot be combined with boundaries, time or cross")
    if words is not None and len(set(map(str, words))) < max(len(words), 1):
        raise ConfigError(f"feature {name!r}: vocabulary must have at least one value, and no duplicates")


def _check_categorical(name: str, feature: Categorical) -> None:
    check_dim(feature.dim, f"feature {name!r}")
    if not feature.multi and (feature.separator or feature.max_values):
        raise ConfigError(
            f"feature {name!r}: separator and max_values need multi: true",
            why="a single-valued feature has exactly one value per sample",
        )
    if feature.cross is not None and len(feature.cross) < 2:
        raise ConfigError(f"feature {name!r}: cross needs two or more columns")
    if feature.boundaries is not None and list(feature.boundaries) != sorted(set(feature.boundaries)):
        raise ConfigError(f"feature {name!r}: boundaries must ascend, got {list(feature.boundaries)}")
    if feature.keep == "last" and not feature.max_values:
        raise ConfigError(f"feature {name!r}: keep: last needs max_values")
    if feature.time and feature.cross:
        raise ConfigError(f"feature {name!r}: time cannot be combined with cross (its columns are unchanged)")
    if feature.time == "age" and feature.boundaries is None:
        raise ConfigError(
            f"feature {name!r}: time: age is a number of days, not an id",
            fix="make the feature numeric (numeric: true, Numeric in Python), or give boundaries in days",
        )
    _check_vocabulary(name, feature)
    _check_weights(name, feature)
    for key in ("buckets", "max_values"):
        value = getattr(feature, key)
        if value is not None and value < 1:
            raise ConfigError(f"feature {name!r}: {key} must be >= 1, got {value}")
