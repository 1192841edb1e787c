"""Event logs that grow while a run trains: folders, Redis streams and Kafka topics."""

from satrap.data.streams.events import EventStream, read_stream
from satrap.data.streams.folder import FolderLog
from satrap.data.streams.kafka import KafkaLog
from satrap.data.streams.labels import LabelledLog
from satrap.data.streams.log import Log
from satrap.data.streams.redis import RedisLog

__all__ = ["EventStream", "FolderLog", "KafkaLog", "LabelledLog", "Log", "RedisLog", "read_stream"]


def __dir__() -> list[str]:
    return sorted(__all__)
