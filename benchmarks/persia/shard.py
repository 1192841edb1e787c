"""A shard server that reports its time by stage at every SIGUSR1, as one line of JSON.

`python -m benchmarks.persia.shard HOST:PORT [JOURNAL]`
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from benchmarks.persia.stages import Stages
from satrap.exchange.servers import ShardServer
from satrap.rpc.server.process import serve

SERVERS = "satrap.exchange.servers"
PLACES = (
    ("receive and check", "satrap.rpc.server.server:Server", "_receive"),
    ("journal", "satrap.rpc.server.journal:Journal", "append"),
    ("lookup", "satrap.store:Shard", "lookup_slots"),
    ("rows to 16 bits", f"{SERVERS}.shard.row_requests", "row_section"),
    ("gradients to 32 bits", f"{SERVERS}.shard.row_requests", "from_wire"),
    ("update", "satrap.store:Shard", "update_group"),
    ("checksum of answers", "satrap.rpc.server.session:Answer", "of"),
    ("send", "satrap.rpc.server.server:Server", "_send"),
)


def main() -> None:
    stages = Stages()
    for stage, place, name in PLACES:
        stages.wrap(stage, place, name)
    signal.signal(signal.SIGUSR1, lambda *_: print(json.dumps(stages.snapshot()), flush=True))
    serve(ShardServer(sys.argv[1], journal=Path(sys.argv[2]) if len(sys.argv) > 2 else None))


if __name__ == "__main__":
    main()
