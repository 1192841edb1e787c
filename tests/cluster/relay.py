"""A link between two interfaces that delays each frame, both ways: for kernels without `netem`.

    python relay.py INTERFACE INTERFACE SECONDS

It prints a line once it forwards. The header of `PACKET_VNET_HDR` goes along with each frame, so that the
kernel may leave checksums, and the division of large frames, to whoever gets them.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress

ALL = 0x0003  # ETH_P_ALL
PACKET, VNET_HDR, OUTGOING = 263, 15, 4  # SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING
LARGEST = 10 + 18 + (1 << 16)
BUFFER = 8 << 20


def opened(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    raw.setsockopt(PACKET, VNET_HDR, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        raw.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    raw.bind((interface, ALL))
    raw.setblocking(False)
    return raw


def relay(first: str, second: str, delay: float) -> None:
    """Forward frames for ever; what meets an interface that is down is lost, as on a wire."""
    ends = [opened(first), opened(second)]
    other = dict(zip(ends, reversed(ends), strict=True))
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    print("ready", flush=True)
    while True:
        patience = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for end in select.select(ends, [], [], patience)[0]:
            with suppress(OSError):
                while True:
                    frame, about = end.recvfrom(LARGEST)
                    if about[2] != OUTGOING:  # not one of our own
                        waiting.append((time.monotonic() + delay, other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            with suppress(OSError):
                end.send(frame)


if __name__ == "__main__":
    relay(sys.argv[1], sys.argv[2], float(sys.argv[3]))
