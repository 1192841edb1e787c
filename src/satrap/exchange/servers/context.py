"""A ZeroMQ context for a client or a server."""

from __future__ import annotations

import threading

import zmq

_ONE_AT_A_TIME = threading.Lock()


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context, whose messages may be sent without being copied from several threads.

    pyzmq frees such messages in a thread of its own, which it starts with the first of them. Two threads with
    a first message each would start it twice, and what one of them sends would never be freed: so the first
    is made here.
    """
    with _ONE_AT_A_TIME:
        zmq.Frame(b"\0", copy=False)
    return zmq.Context()
