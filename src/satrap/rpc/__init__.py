"""Messages between processes over TCP: lists of raw parts, with limits, encrypted with a key.

This package does not interpret messages. `transport` carries parts: `Listener` is a server's end, `Dialer` a
client's; one thread drives either through a `Poller`. Only holders of the `Key` may connect.
"""

from satrap.rpc.transport.address import check_listen, is_loopback, split_address
from satrap.rpc.transport.key import Key, create_key, read_key

__all__ = ["Key", "check_listen", "create_key", "is_loopback", "read_key", "split_address"]
