"""One process of a side: it trains on new samples on request, and reports the time of a step."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from benchmarks.collective.ranks import Side, satrap_side
from benchmarks.peers.loops import loop_side, tables_side
from benchmarks.peers.torchrec_side import torchrec_side
from benchmarks.train_vs_pytorch.workload import cardinalities, generate


def side_of(options: argparse.Namespace) -> Side:
    """Return the side that the options name."""
    if "torchrec" in options.side:
        return torchrec_side(options)
    for prefix, side in (("loop-", loop_side), ("tables-", tables_side)):
        if options.side.startswith(prefix):
            return side(options), lambda: None, dict
    return satrap_side(options)


def main() -> None:
    """Warm up, print "ready", then read numbers of steps from standard input.

    The answer to each is one line of JSON: processor and wall time of a step of this process, ms, and the
    report of the side.
    """
    options = argparse.Namespace(**json.loads(os.environ["RANK_OPTIONS"]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the peers print
    fit, meet, report = side_of(options)
    sizes = cardinalities(options.rows)

    def train(steps: int, number: int) -> dict[str, Any]:
        seed = 1000 * options.seed + 100 * options.rank + number
        samples = generate(steps * options.batch_size, sizes, seed=seed)
        meet()
        wall, cpu = time.perf_counter(), time.process_time()
        fit(samples)
        meet()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"cpu_ms": 1e3 * cpu / steps, "wall_ms": 1e3 * wall / steps, "report": report()}

    train(options.warm_up, 0)  # compiles, and creates the rows of frequent ids
    answers.write("ready\n")
    for number, line in enumerate(sys.stdin, 1):
        answers.write(json.dumps(train(int(line), number)) + "\n")
    os._exit(0)  # TorchRec's threads may not end


if __name__ == "__main__":
    main()
