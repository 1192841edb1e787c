"""A Kafka topic as a log: by the protocol, against the mock cluster of librdkafka, not Apache's broker."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from satrap.data.streams import KafkaLog, read_stream
from satrap.data.streams.events import merged_offsets
from satrap.errors import ConfigError, DataError
from tests.support.logs import SCHEMA, events, read_events

pytestmark = pytest.mark.cluster


class Brokers:
    """A mock cluster of Kafka brokers in this process, with real sockets; a topic has four partitions."""

    def __init__(self) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        self._producer = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": "1"})
        [broker] = self._producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def add(self, topic: str, partition: int, values: list[Any]) -> None:
        """Append messages: bytes as they are, other values as JSON."""
        for value in values:
            raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
            self._producer.produce(topic, raw, partition=partition)
        assert self._producer.flush(10) == 0


@pytest.fixture(scope="module")
def brokers() -> Brokers:
    return Brokers()


def messages(start: int, count: int) -> list[dict[str, Any]]:
    columns = events(start, count)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_each_message_is_read_once_by_two_workers_and_then_three(brokers: Brokers) -> None:
    for partition in range(4):
        brokers.add("clicks", partition, messages(25 * partition, 25))
    log, seen, reached = KafkaLog(brokers.address, "clicks"), list[int](), list[Any]()
    for worker in range(2):
        share = read_stream(log, SCHEMA, batch_size=10).with_options(worker=worker, workers=2)
        batches = share.batches()
        read = list(islice((batch for batch in batches if batch is not None), 2))
        batches.close()  # type: ignore[attr-defined]
        seen += read_events(read)
        reached.append(read[-1].position)
    position = merged_offsets(reached)
    for worker in range(3):
        share = read_stream(log, SCHEMA).with_options(worker=worker, workers=3)
        seen += read_events(share.batches(0, position))
    assert sorted(seen) == list(range(100))


def test_marks_of_deleted_keys_count_as_read(brokers: Brokers) -> None:
    brokers.add("marks", 0, [*messages(0, 3), None, *messages(3, 3), None])
    found = [one for one in read_stream(KafkaLog(brokers.address, "marks"), SCHEMA).batches() if one]
    assert read_events(found) == list(range(6))
    assert found[-1].position["offsets"]["0"][1] in (7, 8)  # the last mark may come by itself


@pytest.mark.parametrize("group", [None, "shown"])
def test_what_was_read_is_shown_to_the_brokers_if_a_group_is_named(
    brokers: Brokers, group: str | None
) -> None:
    """And is never read back."""
    from confluent_kafka import Consumer, TopicPartition

    topic = f"lag-{group}"
    brokers.add(topic, 0, messages(0, 5))
    log = KafkaLog(brokers.address, topic, {} if group is None else {"group.id": group})
    for _ in range(2):
        assert read_events(one for one in read_stream(log, SCHEMA).batches() if one) == list(range(5))
    looking = Consumer({"bootstrap.servers": brokers.address, "group.id": group or "satrap"})
    [found] = looking.committed([TopicPartition(topic, 0)], timeout=10)
    looking.close()
    assert found.offset == (-1001 if group is None else 5)


def test_an_offset_that_is_not_there_is_named_with_those_that_are(brokers: Brokers) -> None:
    brokers.add("short", 0, messages(0, 5))
    stream = read_stream(KafkaLog(brokers.address, "short"), SCHEMA)
    with pytest.raises(
        DataError, match=r"offset 1,000 is no longer available: the oldest is 0, .* new one 5"
    ):
        next(stream.batches(0, {"offsets": {"0": [1000, 1000]}}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{", "a message is not JSON"),
        (b"[1]", "a message is not a JSON object"),
        ({"x": "two", "y": 1, "u": 1}, "is not a number"),
        ({"x": 1, "y": 1, "user": 1}, "column 'u' is missing"),
    ],
)
def test_messages_that_cannot_be_used_are_named(brokers: Brokers, value: Any, message: str) -> None:
    topic = f"bad-{message.split()[-1].strip(chr(39))}"
    brokers.add(topic, 2, [value])
    with pytest.raises(DataError, match=message) as caught:
        list(read_stream(KafkaLog(brokers.address, topic), SCHEMA).batches())
    assert f"topic {topic}, partition 2" in str(caught.value)


def test_numbers_and_texts_of_a_column_are_the_same_ids(brokers: Brokers) -> None:
    brokers.add("mixed", 0, [{"x": 1, "y": 0, "u": 7}, {"x": 2, "y": 1, "u": "7"}, {"x": 3, "y": 1}])
    stream = read_stream(KafkaLog(brokers.address, "mixed"), SCHEMA)
    [batch] = [one for one in stream.batches() if one]
    first, second, third = batch.ids["u"].values
    assert first == second != third


def test_settings_that_librdkafka_does_not_know_are_refused(brokers: Brokers) -> None:
    log = KafkaLog(brokers.address, "clicks", {"no.such.setting": "1"})
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        next(read_stream(log, SCHEMA).batches())
