"""Workers in several processes, connected by `torch.distributed`."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from satrap import compatibility
from satrap.dense.comm.network_interface import interface_of
from satrap.dense.comm.quantized_allreduce import Bytes, ShortSum
from satrap.dense.comm.workers import Compression, WorkerGroup, Workers
from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.kernels import FLOAT32
from satrap.exchange.servers import Wire
from satrap.exchange.wire.formats import CODES
from satrap.runtime.environment import variables
from satrap.settings.mesh import Mesh

BEAT_SECONDS = 0.25
"""Seconds between two heartbeats of a worker."""

SILENT_SECONDS = 4 * BEAT_SECONDS
"""A worker without a heartbeat for at least this long after another's latest one is reported as lost."""

START_SECONDS = 120.0
"""Seconds for all workers to connect; importing PyTorch may take some of them long."""

_POLL_SECONDS = 0.005
_c10d: Any = dist
"""Parts of `torch.distributed` that its type annotations omit."""


class ConnectedWorkerGroup(WorkerGroup):
    """Processes connected by `torch.distributed`.

    Args:
        main: their process group over gloo, for tensors on the CPU.
        counting: a second one, for `count`.
        cuda: one over NCCL, for tensors on CUDA devices; default none.
        wire: number formats; `sum` uses its `dense` format.
    """

    def __init__(self, main: Any, counting: Any, cuda: Any = None, *, wire: Wire = Wire()) -> None:
        self.rank, self.size, self._process = dist.get_rank(main), dist.get_world_size(main), dist.get_rank()
        self._main, self._counting, self._cuda = main, counting, cuda
        if wire.compresses:
            self.compression = Compression(wire.dense_rank)
        code = FLOAT32 if wire.compresses else CODES[wire.dense]
        self._short = None if code == FLOAT32 else ShortSum(code, self.size, self._swap)

    def silent(self) -> list[int]:
        """Return the workers that seem to be dead, if this group can find out."""
        return []

    @contextmanager
    def _watched(self, stage: str, lost: Callable[[RuntimeError], bool] = lambda _: True) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of torch.distributed: closed connections, timeouts
            if not lost(error):
                raise
            raise ExchangeError(
                f"worker {self._process} lost {_named(self.silent())}: {_first_line(error)}",
                where=f"stage: {stage}",
                why="all workers must take every step together",
                fix="look at the other workers' logs; raise cluster.deadline if a worker is only slow",
            ) from error

    @contextmanager
    def watched(self, stage: str) -> Iterator[None]:
        """See `WorkerGroup.watched`."""
        with self._watched(stage, _of_network):
            yield

    def _group(self, tensor: Tensor) -> Any:
        return self._cuda if tensor.device.type == "cuda" else self._main

    def _swap(self, given: Bytes) -> Bytes:
        sent = torch.from_numpy(given)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._main)
        return received.numpy()

    @property
    def rounding(self) -> float | None:
        """See `WorkerGroup.rounding`."""
        if self.compression is not None:
            return self.compression.error
        return 0.0 if self._short is None else self._short.rounding.error

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        """See `WorkerGroup.sum`."""
        with self._watched("sum of dense gradients"):
            if exact is None or self._short is None:
                dist.all_reduce(tensor, group=self._group(tensor))
            else:
                self._short(tensor.numpy(), exact)

    def count(self, values: Sequence[float]) -> list[float]:
        """See `WorkerGroup.count`."""
        counts = torch.tensor(values, dtype=torch.float64)
        with self._watched("count of samples"):
            dist.all_reduce(counts, group=self._counting)
        return [float(value) for value in counts]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """See `WorkerGroup.broadcast`."""
        with self._watched("broadcast of dense weights"):
            for tensor in tensors:
                dist.broadcast(tensor, group=self._group(tensor), group_src=0)

    def share(self, data: bytes) -> bytes:
        """See `WorkerGroup.share`."""
        with self._watched("broadcast of data"):
            size = torch.tensor([len(data)])
            dist.broadcast(size, group=self._main, group_src=0)
            buffer = _tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(buffer, group=self._main, group_src=0)
        return buffer.numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """See `WorkerGroup.gather`."""
        with self._watched("gathering results"):
            sizes = torch.zeros(self.size, dtype=torch.int64)
            sizes[self.rank] = len(data)
            dist.all_reduce(sizes, group=self._main)
            if self.rank > 0:
                dist.send(_tensor(data), group=self._main, group_dst=0)
                return []
            gathered = [data]
            for rank in range(1, self.size):
                buffer = torch.empty(int(sizes[rank]), dtype=torch.uint8)
                dist.recv(buffer, group=self._main, group_src=rank)
                gathered.append(buffer.numpy().tobytes())
        return gathered


class ConnectedWorkers(ConnectedWorkerGroup, Workers):
    """One of several workers, each in its own process.

    A worker counts as lost if a collective does not finish within `deadline`. In calls that may wait long
    (`meet`, `solo`), it counts as lost if it sends no heartbeat for that time.

    Args:
        store: HOST:PORT of the `torch.distributed.TCPStore` where the workers find each other.
        rank: number of this worker.
        size: number of workers.
        host: IPv4 address or name under which the other workers reach this one, default loopback. Gloo
            listens on its interface only, unless the variable GLOO_SOCKET_IFNAME names another one.
        device: device of the network.
        deadline: seconds, default 30.
        prefix: prefix of the keys in the store; a new one for each attempt to start the same workers.
        wire: number formats, the same for all workers; `dense` is the format of the gradients they sum.
        mesh: distribution of the network over the workers; default: a copy each.

    Raises:
        ConfigError: a short format for gradients on a CUDA device, compressed gradients in a mesh that shards
            the network, or a mesh of another size.
        ExchangeError: the other workers did not join in time.
    """

    def __init__(
        self,
        store: str,
        rank: int,
        size: int,
        *,
        host: str = "127.0.0.1",
        device: str = "cpu",
        deadline: float = 30.0,
        prefix: str = "",
        wire: Wire = Wire(),
        mesh: Mesh | None = None,
    ) -> None:
        self.mesh = mesh or Mesh(size)
        if self.mesh.size != size:
            raise ConfigError(
                f"there are {size} workers, but the mesh has {self.mesh}",
                fix="start as many workers as the mesh has, or change the mesh's data",
            )
        formats = {"cluster.wire.dense": wire.dense, "training.device": device}
        compatibility.check(formats | self.mesh.settings)
        self.rank, self.size, self.deadline = rank, size, deadline
        self._process = rank
        self._met: dict[str, int] = {}
        name, _, port = store.rpartition(":")
        with self._watched("finding each other"):
            start = timedelta(seconds=START_SECONDS)
            store_client = _c10d.TCPStore(name, int(port), None, False, start, wait_for_workers=False)
            self._store = _c10d.PrefixStore(prefix, store_client)
            # Heartbeats have their own connection, so that they do not wait for the worker's operations.
            limit = timedelta(seconds=deadline)
            alone = _c10d.TCPStore(name, int(port), None, False, limit, wait_for_workers=False)
            beat = _Beat(_c10d.PrefixStore(prefix, alone), f"beat/{rank}")
            beat.start()
            # Runs at interpreter exit at the latest: the interpreter aborts if a thread is still in C++ code
            # then.
            self._end_beat = weakref.finalize(self, beat.end, deadline)
            self.meet("start")
            self._connect(host, device, wire)

    def _connect(self, host: str, device: str, wire: Wire) -> None:
        limit = timedelta(seconds=self.deadline)
        # Gloo reads only this variable, and ignores options.
        if (interface := interface_of(host)) is not None:
            variables().setdefault("GLOO_SOCKET_IFNAME", interface)
        dist.init_process_group(
            "gloo",
            store=_c10d.PrefixStore("workers", self._store),
            rank=self.rank,
            world_size=self.size,
            timeout=limit,
        )
        counting = dist.new_group(backend="gloo", timeout=limit)
        on_cuda = torch.device(device).type == "cuda"
        cuda = dist.new_group(backend="nccl", timeout=limit) if on_cuda else None
        super().__init__(dist.group.WORLD, counting, cuda, wire=wire)
        self._axes: dict[str, ConnectedWorkerGroup] = {}
        axes = ["data", "tensor", "shard", "replicate"] if not self.mesh.whole else []
        for axis in [*axes, *(["pipeline", "peers"] if self.mesh.pipeline > 1 else [])]:
            backends = ["gloo", *(["gloo"] if axis == "data" else []), *(["nccl"] if on_cuda else [])]
            axis_ranks = self.mesh.axes(self.rank)[axis]
            # `new_group` requires that every process creates every group, in the same order.
            for ranks in sorted({tuple(self.mesh.axes(rank)[axis]) for rank in range(self.size)}):
                made = [dist.new_group(ranks, timeout=limit, backend=backend) for backend in backends]
                if list(ranks) == axis_ranks:
                    main, *others = made
                    cuda = others.pop() if on_cuda else None
                    self._axes[axis] = ConnectedWorkerGroup(
                        main, others[0] if others else main, cuda, wire=wire
                    )

    def pipeline_group(self, device: str) -> Any:
        """Return the PyTorch process group of `pipeline`, for tensors on "cpu" or "cuda"."""
        group = self._axes["pipeline"]
        return group._cuda if device == "cuda" else group._main

    def device_mesh(self, device: str) -> DeviceMesh:
        """Return the PyTorch device mesh of this process's stage: replicate, shard and tensor.

        Args:
            device: device type of the tensors its groups are for, "cpu" or "cuda".
        """
        mesh, names = self.mesh, ("replicate", "shard", "tensor")
        groups = [
            group._cuda if device == "cuda" else group._main for group in (self._axes[name] for name in names)
        ]
        shape = (mesh.data // mesh.shards, mesh.shards, mesh.pipeline, mesh.tensor)
        ranks = torch.arange(self.size).view(shape)[:, :, self.pipeline.rank].contiguous()
        return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=names)

    def called(self, stage: str) -> bool:
        """See `Workers.called`."""
        with self._watched(stage):
            return bool(self._store.add(f"{stage}/{self._met.get(stage, 0) + 1}", 0))

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        """See `Workers.meet`."""
        turn = self._met[stage] = self._met.get(stage, 0) + 1
        # One key per barrier, numbered: a worker that is still in the previous barrier cannot count for this
        # one.
        key, look = f"{stage}/{turn}", self.watch(stage)
        with self._watched(stage):
            self._store.add(key, 1)
            while self._store.add(key, 0) < self.size:
                time.sleep(_POLL_SECONDS)
                if meanwhile is not None:
                    meanwhile()
                look()
            if self.rank == 0 and turn > 1:
                # All workers are past it, so none polls it any more.
                self._store.delete_key(f"{stage}/{turn - 1}")

    def post(self, key: str, data: bytes) -> None:
        """See `Workers.post`."""
        with self._watched("posting"):
            self._store.set(f"post/{key}", data)

    def posted(self, key: str, *, readers: int = 1) -> bytes:
        """See `Workers.posted`."""
        key, stage = f"post/{key}", "waiting for another worker"
        look = self.watch(stage)
        with self._watched(stage):
            while not self._store.check([key]):
                time.sleep(_POLL_SECONDS)
                look()
            data, read = bytes(self._store.get(key)), f"read/{key}"
            if readers == 1 or self._store.add(read, 1) == readers:
                self._store.delete_key(key)
                self._store.delete_key(read)
            return data

    def watch(self, stage: str) -> Callable[[], None]:
        """Return a function to call repeatedly while this worker waits for the others.

        It raises an `ExchangeError` once a worker has sent no heartbeat for the deadline.
        """
        seen = dict[int, tuple[int, float]]()
        next_look = time.monotonic() + BEAT_SECONDS

        def look() -> None:
            nonlocal next_look
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + BEAT_SECONDS
                self._look_for_life(seen, stage)

        return look

    def _look_for_life(self, seen: dict[int, tuple[int, float]], stage: str) -> None:
        """Raise an error if a worker is silent; `seen`: number and time of each last heartbeat."""
        now, deadline = time.monotonic(), self.deadline if stage != "start" else START_SECONDS
        for rank, beat in enumerate(self._beats_of_all()):
            last, at = seen.get(rank, (-1, now))
            if beat != last:
                seen[rank] = beat, now
            elif now - at > deadline:
                raise ExchangeError(
                    f"worker {rank} has sent no heartbeat for {deadline:g} s",
                    where=f"stage: {stage}, in worker {self.rank}",
                    why="training cannot continue without all workers",
                    fix=f"look at the log of worker {rank}",
                )

    def silent(self) -> list[int]:
        """Return the workers that send no heartbeat; this takes a second or two.

        The first worker that finds out publishes the result: workers that lost another one exit, and would
        then look lost themselves.
        """
        try:
            if self._store.check(["lost"]):
                lost = self._store.get("lost")
            else:
                silent = self._unheard()
                lost = self._store.compare_set("lost", "", ",".join(map(str, silent))) if silent else b""
        except RuntimeError:  # the process that holds the store is gone
            return []
        return [int(rank) for rank in lost.decode().split(",") if rank]

    def _unheard(self) -> list[int]:
        """Return the workers that send no heartbeat soon after the others.

        Where many processes share a core, heartbeats come late. Then the wait for the next is three times as
        long as the wait for the previous one.
        """
        before, missing = self._beats_of_all(), set(range(self.size)) - {self.rank}
        start = time.monotonic()
        until = start + SILENT_SECONDS
        while missing and time.monotonic() < until:
            time.sleep(BEAT_SECONDS)
            beats, now = self._beats_of_all(), time.monotonic()
            if heard := {rank for rank in missing if beats[rank] != before[rank]}:
                missing, until = missing - heard, now + max(SILENT_SECONDS, 3 * (now - start))
        return sorted(missing)

    def _beats_of_all(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self.size)]

    def close(self) -> None:
        """See `Workers.close`."""
        self._end_beat()
        dist.destroy_process_group()
        # Gloo's threads end with the last reference to their group. To free a tensor they need the
        # interpreter; if it is shutting down by then, the process aborts.
        for group in (self, *self._axes.values()):
            group._main = group._counting = group._cuda = None


class _Beat(threading.Thread):
    """Sends a worker's heartbeats: a number in the store that grows."""

    def __init__(self, store: Any, key: str) -> None:
        super().__init__(name="satrap-beat", daemon=True)
        self._store, self._key, self._stopping = store, key, threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._store.add(self._key, 1)
            except RuntimeError:
                return  # the process that holds the store is gone; the next operation raises an error
            self._stopping.wait(BEAT_SECONDS)

    def end(self, seconds: float) -> None:
        """Stop; wait at most `seconds` for its current operation."""
        self._stopping.set()
        self.join(seconds)


def _named(workers: Sequence[int]) -> str:
    """Return the lost workers by name, for an error; they may be unknown."""
    if not workers:
        return "another worker"
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _of_network(error: RuntimeError) -> bool:
    """Return whether an error comes from `torch.distributed`, rather than from the model's computation."""
    return isinstance(error, _c10d.DistError) or "gloo" in str(error)


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][-160:]
