"""The result of a run, or its interruption."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satrap.errors import SatrapError
from satrap.launch.folder.run_folder import RunFolder
from satrap.runtime.formatting import html_table, metric_rows, metrics_line, quality
from satrap.train import Result


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run: the trainer's result, and the metrics of the test rows, if any."""

    folder: RunFolder
    result: Result
    test: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Any]:
        """Content of `metrics.json`: test metrics (else validation) on top, then speed, then all parts."""
        result = self.result
        return {
            **quality(self.test or result.metrics),
            "samples_per_second": result.samples_per_second,
            "samples": result.samples,
            "seconds": result.seconds,
            "steps": result.steps,
            "refused": result.refused,
            "stopped": result.stopped,
            "staleness": result.staleness,
            "traffic": result.traffic,
            "validation": result.metrics,
            "test": self.test,
        }

    def __repr__(self) -> str:
        return f"RunOutcome({str(self.folder)!r}, test: {metrics_line(self.test) or 'none'}, {self.result!r})"

    def _repr_html_(self) -> str:
        return html_table(f"Run {self.folder}: test", metric_rows(self.test)) + self.result._repr_html_()


class InterruptedRunError(SatrapError):
    """Training was stopped by Ctrl-C; the message names the saved state."""
