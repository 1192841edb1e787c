"""A listener in a thread that answers each message with itself."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from satrap.rpc import Key
from satrap.rpc.transport.framing import Message
from satrap.rpc.transport.listener import Bounds, Listener


class Echo:
    """Answers what it gets.

    A first part of b"trust me" makes its sender a client, b"forget me" a stranger; b"stop" has it stopped.

    Args:
        bounds: of the listener.
        key: of the listener.

    Attributes:
        listener: it.
        address: HOST:PORT it listens on.
        seen: connections a message came from, one entry per message.
        ended: connections whose end was told.
        dropped: answers that were not taken.
        most_unsent, most_held: the most bytes the listener had after a round.
    """

    def __init__(self, bounds: Bounds | None = None, key: Key | None = None) -> None:
        self.seen, self.ended = list[Hashable](), list[Hashable]()
        self.dropped, self.most_unsent, self.most_held = 0, 0, 0
        self._ending = threading.Event()
        self.listener = Listener(
            "127.0.0.1:0", key=key, bounds=bounds, on_message=self._answer, on_end=self.ended.append
        )
        self.address = self.listener.address
        self._thread = threading.Thread(target=self._run)

    def _answer(self, number: Hashable, message: Message) -> None:
        self.seen.append(number)
        if message[0] == b"trust me":
            self.listener.trust(number)
        if message[0] == b"forget me":
            self.listener.trust(number, False)
        if message[0] == b"stop":
            self.listener.pause(number, True)
        self.dropped += not self.listener.send(number, message)

    def _run(self) -> None:
        while not self._ending.is_set():
            self.listener.poll(0.05)
            self.most_unsent = max(self.most_unsent, self.listener.unsent)
            self.most_held = max(self.most_held, self.listener.held)
        self.listener.close(0.5)

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self.listener.ring()
        self._thread.join()
