"""A Kafka topic as a log of events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.data.streams.columns import EventOrigin, table_of
from satrap.data.streams.log import Events, Offsets
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

TIMEOUT = 30.0
"""Timeout in seconds of requests for topic metadata."""

PARTITIONS_SECONDS = 10.0
"""Interval between checks for new partitions."""


@checked()
@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A topic of a Kafka cluster: each message is a JSON object whose members are the columns.

    Partitions are assigned by number, not by a consumer group, and a run resumes from the offsets in its
    snapshots. An offset is the number of the next message. With a "group.id" in the options, read offsets are
    also committed to the brokers under that name every 5 seconds, for tools that show a group's lag. A run
    never reads the committed offsets.

    Needs `pip install 'satrap[kafka]'`.

    Args:
        brokers: bootstrap addresses, separated by commas.
        topic: name of the topic.
        options: settings of librdkafka's consumer, for example {"security.protocol": "SSL"}.
    """

    brokers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """See `Log`."""
        return f"kafka {self.brokers}, topic {self.topic}"

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> KafkaReader:
        """See `Log.open`."""
        return KafkaReader(self, columns, offsets, worker, workers)


class KafkaReader:
    """Reader of a worker's partitions of a topic; see `LogReader`."""

    def __init__(
        self, log: KafkaLog, columns: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> None:
        self._log, self._columns, self._worker, self._workers = log, columns, worker, workers
        self._start = {int(name): int(offset) for name, offset in offsets.items()}
        self._next: dict[int, int] = {}
        self._consumer = _consumer(log)
        self._looked_at = 0.0
        try:
            self._assign()
        except BaseException:
            self.close()
            raise

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`."""
        if time.monotonic() - self._looked_at > PARTITIONS_SECONDS:
            self._assign()
        if not self._next:
            time.sleep(seconds)  # fewer partitions than workers
            return []
        by_partition: dict[int, list[Message]] = {}
        for message in self._consumer.consume(max(most, 1), seconds):
            if message.error() is not None:
                self._check(message)
                continue
            by_partition.setdefault(message.partition() or 0, []).append(message)
        return [self._events(number, messages) for number, messages in by_partition.items()]

    def caught_up(self) -> bool:
        """See `LogReader.caught_up`."""
        return all(self._ends(number)[1] <= offset for number, offset in self._next.items())

    def close(self) -> None:
        """See `LogReader.close`."""
        self._consumer.close()

    def _assign(self) -> None:
        """Start reading new partitions."""
        from confluent_kafka import KafkaException, TopicPartition

        self._looked_at = time.monotonic()
        try:
            topic = self._consumer.list_topics(self._log.topic, timeout=TIMEOUT).topics[self._log.topic]
        except KafkaException as error:
            raise self._failed(error) from error
        if topic.error is not None:
            raise self._failed(topic.error)
        numbers = [number for number in topic.partitions if number % self._workers == self._worker]
        new = [number for number in numbers if number not in self._next]
        for number in new:
            low, high = self._ends(number)
            offset = self._start.get(number, low)
            if not low <= offset <= high:
                raise self._lost(number, offset, low, high)
            self._next[number] = offset
        if new:
            parts = [TopicPartition(self._log.topic, number, self._next[number]) for number in new]
            self._consumer.incremental_assign(parts)

    def _ends(self, number: int) -> tuple[int, int]:
        """Return the offsets of a partition's oldest message and of its next new message."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(self._log.topic, number), timeout=TIMEOUT
            )
        except KafkaException as error:
            raise self._failed(error) from error
        return int(low), int(high)

    def _check(self, message: Message) -> None:
        """Raise `DataError` for an error that a retry cannot resolve."""
        from confluent_kafka import KafkaError

        error, number = message.error(), message.partition()
        assert error is not None
        gone = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
        if error.code() in gone and number in self._next:
            raise self._lost(number, self._next[number], *self._ends(number))
        if error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ):
            raise self._failed(error)

    def _events(self, number: int, messages: Sequence[Message]) -> Events:
        where = f"{self._log.name}, partition {number}"
        offsets, events = [], []
        for message in messages:
            value = message.value()
            if value is not None:  # None marks a deleted key
                offsets.append(int(message.offset() or 0))
                events.append(_event(value, f"{where}, offset {message.offset()}"))
        after = self._next[number] = int(messages[-1].offset() or 0) + 1
        table = table_of(events, self._columns, where) if events else _nothing(self._columns)
        origin = EventOrigin(where, np.arange(len(offsets)), offsets)
        ends = [*offsets[1:], after]
        return Events(str(number), table, origin, lambda count: ends[count - 1])

    def _lost(self, number: int, offset: int, low: int, high: int) -> DataError:
        return DataError(
            f"offset {offset:,} is no longer available: the oldest is {low:,}, the next new one {high:,}",
            where=f"{self._log.name}, partition {number}",
            why="resuming elsewhere would skip events or read other events",
            fix="set the brokers' retention longer than a run may pause; or start a new run",
        )

    def _failed(self, error: object) -> DataError:
        return DataError(
            f"the topic cannot be read: {error}",
            where=self._log.name,
            fix="correct data.stream.kafka or start the brokers, then resume",
        )


def _consumer(log: KafkaLog) -> Consumer:
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise ConfigError(
            "reading Kafka needs the package confluent-kafka", fix="pip install 'satrap[kafka]'"
        ) from error
    settings: dict[str, Any] = {"bootstrap.servers": log.brokers, "group.id": "satrap", **log.options}
    try:
        shown = "group.id" in log.options
        return Consumer(settings | {"enable.auto.commit": shown, "auto.offset.reset": "error"})
    except (KafkaException, ValueError) as error:
        raise ConfigError(f"kafka: {error}", fix="correct data.stream.kafka.options") from error


def _event(value: bytes, where: str) -> Mapping[str, Any]:
    try:
        event = json.loads(value)
    except ValueError as error:
        raise DataError(f"a message is not JSON: {error}", where=where) from error
    if not isinstance(event, dict):
        raise DataError(
            "a message is not a JSON object", where=where, fix='write messages as {"column": value}'
        )
    return event


def _nothing(columns: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.table({name: pa.nulls(0) for name in columns})
