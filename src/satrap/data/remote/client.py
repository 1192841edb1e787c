"""Client of a data loader: a data set that the loader process reads for this worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from copy import copy
from functools import partial
from typing import Any

from satrap.batch import Batch
from satrap.data.remote.server import AHEAD
from satrap.errors import error_of
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.client.peer import ForgottenError
from satrap.rpc.wire.batches import unpack_batch
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.schema import Schema

REMEMBERED = 64
"""Number of recent batches whose position in the files is remembered."""

GOODBYE_SECONDS = 2.0
"""Longest wait at the end of an epoch; a loader drops clients that stay silent."""


class RemoteData:
    """A worker's shard of the data, read and batched by a loader: the same batches as from a `Dataset`.

    Positions are interchangeable with a `Dataset`'s, so one can resume an epoch of the other. At most `AHEAD`
    batches are in flight, and up to `AHEAD` more are ready in the loader. If the loader restarts at the same
    address, reading resumes after the last batch. If it does not respond within its deadline, iteration ends
    with an `ExchangeError` that names the loader.

    The loader is at `address`, HOST:PORT; `part` is "train", "validation" or "test". The schema must be
    measured. Batches have `batch_size` samples; the default is the batch size in the loader's recipe.
    """

    def __init__(
        self,
        name: str,
        address: str,
        part: str,
        schema: Schema,
        *,
        worker: int = 0,
        workers: int = 1,
        batch_size: int | None = None,
        options: ClientOptions = ClientOptions(),
    ) -> None:
        self.batch_size = batch_size
        self._connect, self._deadline = partial(Client, name, {0: address}, options=options), options.deadline
        share = {"worker": worker, "workers": workers, "batch_size": batch_size}
        self._asked = {"part": part, "schema": schema.to_dict(), "epoch": 0, "position": None, **share}
        self._places: deque[tuple[Any, float | None]] = deque(maxlen=REMEMBERED)

    def with_options(self, **changes: int) -> RemoteData:
        """Return the same data with another `worker`, `workers` or `batch_size`."""
        other = copy(self)
        other._asked, other._places = {**self._asked, **changes}, deque(maxlen=REMEMBERED)
        other.batch_size = changes.get("batch_size", self.batch_size)
        return other

    def exists(self) -> bool:
        """Return whether the loader's recipe defines this part of the data."""
        return "missing" not in self._about()

    def num_rows(self) -> int | None:
        """Return this worker's rows per epoch, or None if they are unknown before reading."""
        return self._about().get("rows")

    def fingerprint(self) -> list[dict[str, Any]]:
        """Return the fingerprints that show whether the rows have changed, see `Dataset.fingerprint`."""
        while True:
            try:
                with self._connected() as client:
                    self._open(client, fingerprint=True)
                    return list(self._fingerprints(client))
            except ForgottenError:
                continue  # the loader has restarted

    def _fingerprints(self, client: Client) -> Iterator[dict[str, Any]]:
        text: dict[str, Any] = {}
        while "end" not in text:
            text = _answered(client.ask(0, MessageKind.NEXT).result()[0])
            yield from text.get("fingerprint", ())

    def _about(self) -> dict[str, Any]:
        with self._connected() as client:
            return self._open(client, read=False)

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        client = self._connect()
        try:
            yield client
        finally:
            # Other workers wait for this worker's next step, and give up after the same deadline.
            client.close(min(GOODBYE_SECONDS, self._deadline / 2))

    def _open(self, client: Client, **changes: Any) -> dict[str, Any]:
        [part] = client.ask(0, MessageKind.OPEN, [pack_text({**self._asked, **changes})]).result()
        return _answered(part)

    def progress(self, position: Any, epoch: int = 0) -> float | None:
        """Return the fraction of the epoch before a batch's position; None unless the batch is recent."""
        return next((share for place, share in list(self._places) if place is position), None)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield the batches of one epoch, or the batches after `position`; see `Dataset.batches`.

        Raises the same `DataError` and `ConfigError`, and `ExchangeError` if the loader is lost.
        """
        while True:
            try:
                with closing(self._pass(epoch, position)) as batches:
                    for batch in batches:
                        position = batch.position
                        yield batch
                return
            except ForgottenError:
                continue  # the loader has restarted: resume after the last batch

    def _pass(self, epoch: int, position: Any) -> Generator[Batch]:
        with self._connected() as client:
            self._open(client, epoch=epoch, position=position)
            pending = deque(client.ask(0, MessageKind.NEXT) for _ in range(AHEAD))
            while (batch := self._take(pending.popleft())) is not True:
                pending.append(client.ask(0, MessageKind.NEXT))
                if isinstance(batch, Batch):
                    yield batch

    def _take(self, answer: Future[Sequence[Buffer]]) -> Batch | bool:
        """Return a batch, True at the end, or False if no batch is ready yet.

        The arrays are views of the message and keep it alive.
        """
        first, *parts = answer.result()
        text = _answered(first)
        if "size" not in text:
            return "end" in text
        batch = unpack_batch(text, parts)
        self._places.append((batch.position, text.get("progress")))
        return batch


def _answered(part: Buffer) -> dict[str, Any]:
    """Return the text of a response, or raise the error it carries."""
    text = unpack_text(part)
    if "error" in text:
        raise error_of(text["error"])
    return text
