"""What tests of training share: snapshots that do not depend on time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from satrap.checkpoint import Background
from satrap.train.progress import running_metrics


@pytest.fixture
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are complete before the next step, so that the steps they are of do not depend on time."""
    monkeypatch.setattr(running_metrics, "WINDOW_SAMPLES", 130)
    if "while_a_snapshot_is_written" not in request.node.name:
        start = Background.start

        def start_and_wait(self: Background, job: Callable[[], object]) -> None:
            start(self, job)
            self.wait()

        monkeypatch.setattr(Background, "start", start_and_wait)
