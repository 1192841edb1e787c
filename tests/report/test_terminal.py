import io

import pytest

from satrap.report import ProgressLine
from satrap.train.observer import Progress, Result

RESULT = Result(
    metrics={},
    history=(),
    steps=6,
    samples=600,
    seconds=1.5,
    samples_per_second=400.0,
    refused=0,
    stopped="patience",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(line: ProgressLine) -> None:
    with line:
        progress = Progress(total_samples=600)
        line.started(progress)
        for step in range(1, 7):
            progress.step, progress.epoch, progress.samples = step, (step - 1) // 3, step * 100
            line.step(progress)
            if step % 3 == 0:
                line.evaluated({"auc": 0.7}, progress)
        line.finished(RESULT)


def test_plain_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    run(ProgressLine(stream))
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "epoch 1 step 3  50%",
        "epoch 1 validation: AUC 0.7000",
        "epoch 2 step 6 100%",
        "epoch 2 validation: AUC 0.7000",
        "6 steps, 600 samples in 1.5 s: 400 samples/s, ended early: validation no longer improves",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_plain_line_per_epoch_without_validation() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    progress = Progress()
    line.started(progress)
    for epoch in (0, 0, 1, 1, 2):
        progress.epoch = epoch
        line.step(progress)
    assert [text.split(" step")[0] for text in stream.getvalue().splitlines()] == ["epoch 2", "epoch 3"]


def test_plain_lines_every_so_often() -> None:
    stream = io.StringIO()
    run(ProgressLine(stream, plain_seconds=0.0))
    assert sum(" | " in line for line in stream.getvalue().splitlines()) == 8


def test_a_live_line_on_a_terminal_leaves_only_the_results() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    run(line)
    text = stream.getvalue()
    assert "\x1b[?25h" in text  # the cursor is back
    assert "validation: AUC 0.7000" in text
    assert "6 steps, 600 samples" in text
    line.say("after")  # a closed line still speaks
    assert stream.getvalue().endswith("after\n")


def test_the_line_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with ProgressLine(stream) as line:
        line.started(Progress())
        line._shown_at = 0.0
        line.step(Progress(step=1, rows=12345, staleness=4, memory_bytes=1 << 20, eta_seconds=61))
    shown = " ".join(stream.getvalue().split())
    for part in ("step 1", "loss -", "1:01 left"):
        assert part in shown
    assert "staleness" not in shown
