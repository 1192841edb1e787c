"""The process of a shard server: `python -m satrap.exchange.servers.serve 127.0.0.1:5000`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from satrap.errors import ConfigError, SatrapError
from satrap.exchange.servers.server import ShardServer
from satrap.rpc import read_key
from satrap.rpc.server.process import serve


def main() -> int:
    """Read the command line and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m satrap.exchange.servers.serve")
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--journal", type=Path)
    arguments = parser.parse_args()
    try:
        key = read_key(arguments.key_file) if arguments.key_file else None
        serve(ShardServer(arguments.listen, key=key, journal=arguments.journal))
    except SatrapError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
