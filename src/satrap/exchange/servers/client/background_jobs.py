"""A client's view of background jobs of shards: it starts them, and raises their errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from satrap.exchange.servers.shard.snapshots import error_of, unpack_result
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import MessageKind
from satrap.rpc.wire.text import pack_text

JOB_SECONDS = 0.02
"""Seconds between two polls of a shard's background job."""


class BackgroundJobs:
    """Runs long tasks on shards, concurrently with their requests.

    Args:
        shards: the shards.
    """

    def __init__(self, shards: Client) -> None:
        self._shards = shards

    def result(self, shard: int, text: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until a shard's job is "done", or "lost" with a process, and return the shard's report.

        `text` identifies the job.
        """
        while not ((result := self._look(shard, text))["done"] or result.get("lost")):
            time.sleep(JOB_SECONDS)
        return result

    def _look(self, shard: int, text: Mapping[str, Any]) -> dict[str, Any]:
        return unpack_result(self._shards.ask(shard, MessageKind.JOB, [pack_text(text)]).result())

    def run(
        self, kind: MessageKind, text: Mapping[str, Any], name: Mapping[str, Any] = {}
    ) -> list[dict[str, Any]]:
        """Run a job on all shards; wait for all of them, then raise the first error.

        `name`: identifies the job for `result`.
        """
        self._shards.ask_all(kind, [pack_text(text)])
        return self.check([self.result(shard, name) for shard in self._shards.peers])

    def check(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of all shards' jobs, or raise the first error."""
        for result, peer in zip(results, self._shards.peers.values(), strict=True):
            if "error" in result:
                raise error_of(result["error"], peer.name)
        return results
