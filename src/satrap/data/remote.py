"""A data set that a loader process reads for this worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from copy import copy
from functools import partial
from typing import Any

from satrap.batch import Batch
from satrap.data.loader import AHEAD
from satrap.errors import error_of
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.client.peer import ForgottenError
from satrap.rpc.wire.batches import unpack_batch
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.schema import Schema

REMEMBERED = 64
"""Number of latest batches whose place in the files is remembered."""

GOODBYE_SECONDS = 2.0
"""Longest wait at the end of a pass; a loader forgets clients that it hears no more of."""


class RemoteData:
    """A worker's share of the data, read and batched by a loader: the same batches as from a `Dataset`.

    A position is the same as the `Dataset` gives, so either can continue a pass of the other. At most `AHEAD`
    batches are on their way, and as many are ready in the loader. If the loader restarts at the same address,
    the pass continues after the last batch. If it does not answer within its deadline, the pass ends with an
    `ExchangeError` that gives its name.

    The loader is at `address`, HOST:PORT; `part` is "train", "validation" or "test". The schema is measured.
    Batches have `batch_size` samples, by default as many as the loader's recipe says.
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
        self._connect, self._deadline = partial(Client, name, address, options=options), options.deadline
        share = {"worker": worker, "workers": workers, "batch_size": batch_size}
        self._asked = {"part": part, "schema": schema.to_dict(), "epoch": 0, "position": None, **share}
        self._places: deque[tuple[Any, float | None]] = deque(maxlen=REMEMBERED)

    def with_options(self, **changes: int) -> RemoteData:
        """Return the same rows with another `worker`, `workers` or `batch_size`."""
        other = copy(self)
        other._asked, other._places = {**self._asked, **changes}, deque(maxlen=REMEMBERED)
        other.batch_size = changes.get("batch_size", self.batch_size)
        return other

    def exists(self) -> bool:
        """Whether the recipe of the loader has such rows."""
        return "missing" not in self._about()

    def num_rows(self) -> int | None:
        """Return this worker's rows of one pass, or None if only reading would tell."""
        return self._about().get("rows")

    def fingerprint(self) -> list[dict[str, Any]]:
        """Return what tells whether the rows are still the same, see `Dataset.fingerprint`."""
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
            text = _answered(client.ask(Kind.NEXT).result()[0])
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
            # The other workers wait for this one's next step, and give it up after the same deadline.
            client.close(min(GOODBYE_SECONDS, self._deadline / 2))

    def _open(self, client: Client, **changes: Any) -> dict[str, Any]:
        [part] = client.ask(Kind.OPEN, [pack_text({**self._asked, **changes})]).result()
        return _answered(part)

    def progress(self, position: Any, epoch: int = 0) -> float | None:
        """Return the share of a pass before a batch's position; None unless it is a recent batch."""
        return next((share for place, share in list(self._places) if place is position), None)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield the batches of one pass, or the ones after `position`; see `Dataset.batches`.

        Raises `DataError` and `ConfigError` as it does, and `ExchangeError` if the loader is lost.
        """
        while True:
            try:
                with closing(self._pass(epoch, position)) as batches:
                    for batch in batches:
                        position = batch.position
                        yield batch
                return
            except ForgottenError:
                continue  # the loader has restarted: continue after the last batch it gave

    def _pass(self, epoch: int, position: Any) -> Generator[Batch]:
        with self._connected() as client:
            self._open(client, epoch=epoch, position=position)
            asked = deque(client.ask(Kind.NEXT) for _ in range(AHEAD))
            while (batch := self._take(asked.popleft())) is not True:
                asked.append(client.ask(Kind.NEXT))
                if isinstance(batch, Batch):
                    yield batch

    def _take(self, answer: Future[Sequence[Buffer]]) -> Batch | bool:
        """Return a batch, True at the end, or False if it is not ready yet.

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
    """Return the text of an answer; raise the error that it carries."""
    text = unpack_text(part)
    if "error" in text:
        raise error_of(text["error"])
    return text
