"""A server whose rows are in shards, compared with a server that holds them.

`python -m benchmarks.serving.shards [--requests 1000] [--shards 1 2 4]`

The reference work of `benchmarks.serving`, a request of one context and 100 items. Shards are processes on
the same machine, without a key. Each request is answered by both servers in turn, in one process with one
thread of PyTorch, and the scores must be equal to the bit. "processor" is the processor time of the server's
process, all its threads, for a request from JSON to JSON, in milliseconds; "shards" the processor time of all
shards together; "wall" the elapsed time, and "lookup" the part of it until the rows arrive.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.processes import processor_seconds
from benchmarks.record import write
from benchmarks.serving.__main__ import MAX_ITEMS, request, trained
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.exchange import LocalExchange
from satrap.exchange.shard_map import ShardMap
from satrap.rpc.server.server import Server
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.serve.shards.connections import ShardLinks
from satrap.serve.shards.kept_rows import KeptRows, RowVersions, Version
from satrap.serve.shards.rows_service import RowsService
from satrap.serve.shards.sharded import ShardedModel, ShardedRows
from satrap.store import StoreConfig
from satrap.train import Predictor
from satrap.train.predictor import predictor_for, prepare


def loaded(url: str, exchange: Any) -> Predictor:
    device = prepare("cpu", 1)
    return predictor_for(
        exchange, url, None, device=device, store=StoreConfig(), stateless=True, metrics=None
    )


def serving(url: str, number: int, shards: int, told: Any) -> None:
    map = ShardMap(shards)
    rows: list[LocalExchange] = []

    def exchange(store: Any) -> LocalExchange:
        rows.append(LocalExchange(store, buckets=map.buckets(number)))
        return rows[0]

    loaded(url, exchange)
    version = Version(0, read_manifest(Storage(url)).id, 0.0)
    versions = RowVersions(KeptRows(rows[0].shard, version), keep=1, most_bytes=1 << 20)
    server = Server("127.0.0.1:0", RowsService(versions, map, number))
    told.send(server.address)
    server.run()


def cpu_ms(processes: list[Any]) -> float:
    return 1000 * sum(processor_seconds(process.pid) for process in processes)


class Served:
    """A server without sockets for clients, and the times of its requests."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.processor: list[float] = []
        self.wall: list[float] = []

    def answer(self, body: bytes) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        request = protocol.read(body, self.model, max_items=MAX_ITEMS)
        scores = self.model.score(self.model.encode([request]))
        protocol.write(ScoredRequest(self.model, self.model.step, scores))
        self.processor.append(1000 * (time.process_time() - processor))
        self.wall.append(1000 * (time.perf_counter() - wall))
        return scores

    def lookup_ms(self, requests: int) -> float:
        return 1000 * self.model.seconds.lookup / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spawn, results = multiprocessing.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        url = trained(Path(folder) / "model")
        id = read_manifest(Storage(url)).id
        for shards in arguments.shards:
            processes, addresses = [], []
            for number in range(shards):
                mine, theirs = spawn.Pipe()
                processes.append(
                    spawn.Process(target=serving, args=(url, number, shards, theirs), daemon=True)
                )
                processes[-1].start()
                addresses.append(mine.recv())
            with ShardLinks(addresses, None) as links:
                links.wait(bool, print)
                exchange = partial(ShardedRows, links=links, version=id)
                local = Served(ServedModel("reference", loaded(url, LocalExchange), version=id))
                far = Served(ShardedModel("reference", loaded(url, exchange), version=id))
                before = cpu_ms(processes)
                for number in range(arguments.requests):
                    body = request(100, number)
                    order = (local, far) if number % 2 else (far, local)
                    answers = [one.answer(body) for one in order]
                    assert np.array_equal(*answers), "the scores differ"
                figures: dict[str, Any] = {
                    name: {
                        key: float(np.median(getattr(one, name)))
                        for key, one in (("own", local), ("far", far))
                    }
                    for name in ("processor", "wall")
                }
                figures["shards"] = (cpu_ms(processes) - before) / arguments.requests
                figures["lookup"] = {
                    "own": local.lookup_ms(arguments.requests),
                    "far": far.lookup_ms(arguments.requests),
                }
                figures["ratio"] = {n: figures[n]["far"] / figures[n]["own"] for n in ("processor", "wall")}
                results[f"{shards} shards"] = figures
                print(shards, figures, flush=True)
                local.model.close()
                far.model.close()
            for process in processes:
                process.terminate()
                process.join()
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
