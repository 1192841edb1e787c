"""Recipe keys for data: its files or streams, and how they are read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from satrap.config.keys.derive import Choice, Keys, Sources, Texts
from satrap.config.keys.values import Count, Positive, Seconds


class JoinKeys(Keys):
    """Adds columns of a second, small file to every row."""

    source: str
    """The second file, relative to the recipe; held in memory."""
    on: str
    """Key column of the data's rows."""
    key: str | None = None
    """Key column of `source`, without duplicates; default the name in `on`."""
    columns: list[str] = Field(default_factory=list)
    """Columns to add; default all but the key."""
    prefix: str = ""
    """Prefix for the names of the added columns."""


class SplitKeys(Keys):
    """Row `i` belongs to part `i % modulo`. Parts not named below are for training."""

    modulo: Positive
    """Number of parts."""
    validation: list[Count] = Field(default_factory=list)
    """Parts of `data.train` to use for validation."""
    test: list[Count] = Field(default_factory=list)
    """Parts of `data.train` to use for testing."""


class TimeSplitKeys(Keys):
    """Splits rows by a column of times. Rows before the first time named below are for training."""

    column: str
    """Column of times: timestamps, dates, strings such as 2024-01-31 08:05:30, or seconds since 1970 (also
    milli-, micro- or nanoseconds)."""
    validation: str | float | None = None
    """First time of the validation rows in `data.train`; default none."""
    test: str | float | None = None
    """First time of the test rows in `data.train`, later than `validation`; default none."""


def _way(value: Mapping[str, Any]) -> str:
    return "time" if "column" in value else "rows"


class RedisKeys(Keys):
    """Streams of a Redis server; the fields of an entry are its columns."""

    url: str
    """The server, for example redis://localhost:6379/0."""
    streams: Texts
    """Keys of the streams; each is read by one worker."""


class KafkaKeys(Keys):
    """A topic of a Kafka cluster. The value of a message is a JSON object whose members are the columns."""

    brokers: str
    """Bootstrap addresses, for example kafka1:9092,kafka2:9092."""
    topic: str
    """The topic; each partition is read by one worker."""
    options: dict[str, str] = Field(default_factory=dict)
    """Settings of librdkafka, for example security.protocol. With group.id, read offsets are committed under
    this name, so that tools can show the consumer lag."""


class LogKeys(Keys):
    """A log of events."""

    folder: str | None = None
    """A folder (relative to the recipe) or URL to which other programs add files of events."""
    redis: RedisKeys | None = None
    """Streams of a Redis server."""
    kafka: KafkaKeys | None = None
    """A topic of a Kafka cluster."""


class StreamKeys(LogKeys):
    """A log of events, read once and in order. `training.follow` decides when reading ends."""

    time: str | None = None
    """Column of the events' times; metrics are reported per hour of this column."""
    wait: Seconds = 1.0
    """Longest time that an event waits for its batch to fill."""
    bad_events: Literal["stop", "skip"] = "stop"
    """Handling of events with an unusable value. stop: the run stops and names the place; skip: these events
    are left out, with a warning for the first, the tenth, the hundredth and so on."""
    labels: LogKeys | None = None
    """A second log with the events' labels: `id`, `time`, and 0 or 1 in the label columns."""
    label_window: Seconds | None = None
    """How long training waits for the labels of an event, from the event's time on, for example 10m. An event
    without labels by then gets 0."""
    id: str | None = None
    """Column of both logs that matches labels to events."""


class DataKeys(Keys):
    """The data and how it is read."""

    train: Sources | None = None
    """Training rows: a file, glob or URL, or a list of them; paths are relative to the recipe."""
    stream: StreamKeys | None = None
    """A log of events to train on, instead of `train`."""
    validation: Sources | None = None
    """Rows scored after each epoch. Their metric decides learning-rate drops, early stopping and the best
    weights."""
    test: Sources | None = None
    """Rows scored once, after training."""
    items: Sources | None = None
    """The items that `training.ranking` ranks with `among: items`: files with one row per item, with the
    columns of the item's features. Default: the items of the training rows and of the evaluated rows."""
    format: Literal["csv", "tsv", "parquet", "arrow"] | None = None
    """File format; default by file extension."""
    batch_size: Positive = 4096
    """Samples per step and worker; with `global_batch`, of all workers together."""
    global_batch: bool = False
    """Divide `batch_size` among the workers, so that the steps do not depend on the number of workers."""
    shuffle: bool = True
    """Shuffle the training rows (files, row groups and a buffer) differently in each epoch."""
    buffer_rows: Positive | None = None
    """Number of rows in the shuffle buffer; limits the reader's memory."""
    balance: str | None = None
    """A sequence feature. Its events are spread about evenly over the training batches of a shuffle
    buffer."""
    separator: str | None = None
    """CSV: the character between columns; default a comma, a tab for .tsv."""
    columns: list[str] | None = None
    """CSV: column names, for files without a header line."""
    comment: str | None = None
    """CSV: skip lines that start with this."""
    missing: Texts | None = None
    """Values that mean "missing", in any format; default empty, ?, NA, N/A, NaN, nan, null, NULL."""
    strip: bool | None = None
    """CSV: remove spaces around values; default false."""
    quote: Annotated[str | None, BeforeValidator(lambda value: "" if value is None else value)] = None
    """CSV: the character around values that contain separators; default a double quote; null or "": none."""
    encoding: str | None = None
    """CSV: character encoding; default utf-8."""
    decimal: Literal[".", ","] | None = None
    """CSV: the decimal separator; default a point."""
    thousands: str | None = None
    """CSV: the thousands separator, such as the comma in 1,234.5; default none."""
    join: list[JoinKeys] = Field(default_factory=list)
    """Columns to add from other files."""
    split: Annotated[
        SplitKeys | TimeSplitKeys | None, Choice(_way, {"rows": SplitKeys, "time": TimeSplitKeys}, "modulo")
    ] = None
    """Take validation and test rows out of `train` by row number, or by time: `column: ...`."""
