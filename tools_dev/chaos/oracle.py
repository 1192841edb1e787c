"""What a run that was killed must have left: the bytes of an undisturbed one where these are promised, and
in any case snapshots that are whole, in order, and of the samples they say.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.checkpoint import Series, read_checkpoint
from satrap.dense.backends.parameter_server import DENSE_TABLE
from tools_dev.chaos.digests import differences, digest
from tools_dev.chaos.drawing import (
    BATCH,
    STALENESS,
    TRAINED,
    Configuration,
    distinct_ids,
    epochs,
    forgets,
    is_exact,
)

LEAST_AUC = 0.7
"""Of the test rows. The items alone give 0.9; a model that learnt nothing has 0.5."""


@dataclass
class Looked:
    """How much was checked: snapshots read, of these equal to another one of their step, deltas equal to what
    the store wrote whole at their step, and runs that ended.
    """

    snapshots: int = 0
    compared: int = 0
    chains: int = 0
    finished: int = 0


class Oracle:
    """Judges the folders of the runs of one configuration.

    Args:
        configuration: of the runs.
        reference: folder of an undisturbed run with a snapshot at as many steps as possible; removed.
    """

    def __init__(self, configuration: Configuration, reference: Path) -> None:
        self.configuration, self.exact, self.looked = configuration, is_exact(configuration), Looked()
        self._known: dict[int, dict[str, str]] = {}
        self._model = digest(str(reference / "model"))
        self.snapshots(reference, None)
        self.end(reference)
        self.looked = Looked()
        shutil.rmtree(reference)

    def snapshots(self, run: Path, before: int | None) -> int | None:
        """Check every snapshot that a reader finds; return the step of the newest.

        Args:
            run: folder of the run.
            before: step of the newest one when this was called the last time.
        """
        series = Series(str(run / "checkpoints"))
        steps, samples = series.steps(), 0
        for step in steps:
            manifest = series.verify(step)
            found = digest(series.place(step))
            self.looked.snapshots += 1
            own = self._samples(manifest.settings)
            assert own >= samples, f"step {step} is of {own} samples, the one before of {samples}"
            samples = own
            if self.exact:
                self.looked.compared += step in self._known
                wrong = differences(found, self._known.setdefault(step, found))
                assert not wrong, f"step {step}: {wrong} differ from those of another run"
            best = run / "checkpoints" / f"best-{step:08d}"
            if manifest.delta is not None and self._in_step() and (best / "manifest.json").exists():
                assert rows_of(str(best)) == rows_of(series.place(step)), (
                    f"step {step}: deltas make other rows"
                )
                self.looked.chains += 1
        newest = max(steps, default=None)
        assert before is None or (newest is not None and newest >= before), f"{before} was lost: {steps}"
        return newest

    def _in_step(self) -> bool:
        """Whether all workers are at the same step, so that a step is of one state."""
        return self.configuration["mode"] != "async" or self.configuration["workers"] == 1

    def _samples(self, settings: dict[str, Any]) -> int:
        """Return how many samples a snapshot has trained: where workers are in step, by its step."""
        parts = [part["progress"]["samples"] for part in (settings["run"], *settings["peers"])]
        if self.configuration["mode"] == "async":
            return int(sum(parts))
        expected = settings["steps"] * BATCH * int(self.configuration["workers"])
        assert parts[0] == expected, f"step {settings['steps']} is of {parts[0]} samples, not {expected}"
        return expected

    def end(self, run: Path) -> None:
        """Check what a run has left that got to its end."""
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["stopped"] == "epochs"
        assert metrics["samples"] == epochs(self.configuration) * TRAINED, metrics["samples"]
        most = 0 if self.configuration["mode"] == "sync" else STALENESS
        assert max(map(int, metrics["staleness"])) == most, metrics["staleness"]
        assert metrics["refused"] == 0
        assert math.isfinite(metrics["logloss"])
        assert metrics["auc"] > LEAST_AUC, metrics["auc"]
        model = str(run / "model")
        if self.exact:
            wrong = differences(digest(model), self._model)
            assert not wrong, f"the result differs from that of an undisturbed run: {wrong}"
        rows = [len(chunk.ids) for table, chunk in read_checkpoint(model).chunks if table != DENSE_TABLE]
        evicts, several = forgets(self.configuration), int(self.configuration["workers"]) > 1
        # Among collective workers a pass has 12 steps, as the ttl, and each counts once: all may be left.
        slow = self.configuration["eviction"] == "ttl" and self.configuration["shards"] == "none" and several
        most = distinct_ids() - (evicts and not slow)
        least = distinct_ids() if not evicts and self.configuration["admission"] == "none" else 1
        assert least <= sum(rows) <= most, f"{sum(rows)} rows, not {least} to {most}"
        self.looked.finished += 1


def rows_of(url: str) -> dict[str, str]:
    return {name: value for name, value in digest(url).items() if name.startswith("rows.")}
