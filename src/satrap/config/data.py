"""Keys of a recipe that say where its rows come from and how they are read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from satrap.config.derive import Choice, Keys, Sources, Texts
from satrap.config.values import Count, Positive, Seconds


class Join(Keys):
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
    """Put before the names of the added columns."""


class Split(Keys):
    """Row `i` belongs to part `i % modulo`; parts not named below are for training."""

    modulo: Positive
    """Number of parts."""
    validation: list[Count] = Field(default_factory=list)
    """Parts of `data.train` to use for validation."""
    test: list[Count] = Field(default_factory=list)
    """Parts of `data.train` to use for the test."""


class TimeSplit(Keys):
    """Rows are divided by the time in a column: those before the first time named below are for training."""

    column: str
    """Column of times: timestamps, dates, texts such as 2024-01-31 08:05:30, or seconds since 1970 (also
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
    """A topic of a Kafka cluster; the value of a message is a JSON object, its members are the columns."""

    brokers: str
    """Addresses to begin with, for example kafka1:9092,kafka2:9092."""
    topic: str
    """The topic; each partition is read by one worker."""
    options: dict[str, str] = Field(default_factory=dict)
    """Settings of librdkafka, for example security.protocol. With group.id, what was read is committed under
    this name, for tools that show how far behind a run is."""


class LogKeys(Keys):
    """A log of events."""

    folder: str | None = None
    """A folder (relative to the recipe) or URL to which others add files of events."""
    redis: RedisKeys | None = None
    """Streams of a Redis server."""
    kafka: KafkaKeys | None = None
    """A topic of a Kafka cluster."""


class StreamKeys(LogKeys):
    """A log of events in place of files: read once, in order, for as long as `training.follow` says."""

    time: str | None = None
    """Column of the events' times; the metrics of each hour are reported by it."""
    wait: Seconds = 1.0
    """Longest time for which an event waits until its batch is full."""
    bad_events: Literal["stop", "skip"] = "stop"
    """What becomes of events with a value that cannot be used: the run stops and names the place, or they are
    left out, with a warning for the first, the tenth and so on."""
    labels: LogKeys | None = None
    """A second log, with labels of events: 0 or 1 in the columns of the labels, with `id` and `time`."""
    label_window: Seconds | None = None
    """How long after its time an event is trained on, so that its labels have come, for example 10m; without
    one they are 0."""
    id: str | None = None
    """Column of events and of their labels that says which belong together."""


class Data(Keys):
    """Where the rows come from and how they are read."""

    train: Sources | None = None
    """Training rows: a file, glob or URL, or a list of them; paths are relative to the recipe."""
    stream: StreamKeys | None = None
    """A log of events to train on, in place of `train`."""
    validation: Sources | None = None
    """Rows scored after each epoch; they decide learning-rate drops, early stop and best weights."""
    test: Sources | None = None
    """Rows scored once, after training."""
    format: Literal["csv", "tsv", "parquet", "arrow"] | None = None
    """File format; default by the endings of the names."""
    batch_size: Positive = 4096
    """Samples per step. Each worker takes as many, unless `global_batch` is true."""
    global_batch: bool = False
    """Divide `batch_size` among the workers, so that a run with more of them takes the same steps."""
    shuffle: bool = True
    """Shuffle the training rows (files, row groups and a buffer) differently in each epoch."""
    buffer_rows: Positive | None = None
    """Rows in the shuffle buffer; limits the reader's memory."""
    balance: str | None = None
    """A sequence: training batches out of one shuffle buffer have about equally many of its events."""
    separator: str | None = None
    """CSV: the character between columns; default a comma, a tab for .tsv."""
    columns: list[str] | None = None
    """CSV: column names, for files without a header line."""
    comment: str | None = None
    """CSV: skip lines that start with this."""
    missing: Texts | None = None
    """Values that mean "missing", in any format; default empty, ?, NA, N/A, NaN, nan, null, NULL."""
    strip: bool | None = None
    """CSV: remove blanks around values; default false."""
    quote: Annotated[str | None, BeforeValidator(lambda given: "" if given is None else given)] = None
    """CSV: the character around values that contain separators; default a double quote; null or "": none."""
    encoding: str | None = None
    """CSV: character encoding; default utf-8."""
    decimal: Literal[".", ","] | None = None
    """CSV: the mark before the fraction of a number; default a point."""
    thousands: str | None = None
    """CSV: the mark between groups of three digits, such as a comma in 1,234.5; default none."""
    join: list[Join] = Field(default_factory=list)
    """Columns to add from other files."""
    split: Annotated[Split | TimeSplit | None, Choice(_way, {"rows": Split, "time": TimeSplit}, "modulo")] = (
        None
    )
    """Take validation and test rows out of `train` by row number, or by time: `column: ...`."""
