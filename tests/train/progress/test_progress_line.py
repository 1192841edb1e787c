import io
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from satrap.report import ProgressLine
from satrap.train.progress.observer import Progress, Result
from satrap.train.progress.progress_line import LiveLine, progress_line

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


@pytest.mark.parametrize(("stream", "every"), [(io.StringIO(), 10.0), (Terminal(), 0.25)])
def test_a_line_is_shown_as_often_as_it_may_be(
    stream: io.StringIO, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, progress, shown = 100.0, Progress(), []
    monkeypatch.setattr("satrap.train.progress.progress_line.time", SimpleNamespace(monotonic=lambda: now))
    with ProgressLine(stream) as line:
        line.started(progress)
        for share in (0.99, 1.0, 1.99, 2.0, 2.5, 3.49, 3.5):
            now = 100.0 + share * every
            before = len(stream.getvalue())
            line.step(progress)
            if len(stream.getvalue()) > before:
                shown.append(share)
            if share == 2.5:
                line.evaluated({"auc": 0.7}, progress)
                progress.epoch = 1  # of which the validation has told
    assert shown == [1.0, 2.0, 3.5]


def test_steps_that_were_refused_are_told_at_the_end() -> None:
    stream = io.StringIO()
    ProgressLine(stream).finished(replace(RESULT, steps=4000, refused=1234, stopped=""))
    assert stream.getvalue().splitlines() == [
        "4,000 steps, 600 samples in 1.5 s: 400 samples/s",
        "warning: 1,234 of 4,000 steps (30.9%) were refused: their loss or a gradient was not finite, so "
        "nothing was learnt from their samples",
    ]


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


def test_the_live_line_of_a_search_leaves_nothing() -> None:
    plain, stream = io.StringIO(), Terminal()
    run(LiveLine(plain))
    assert plain.getvalue() == ""
    run(LiveLine(stream))
    text = stream.getvalue()
    assert "epoch 2 step 4" in text
    assert "validation" not in text
    assert "6 steps" not in text


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


def test_progress_line_says_everything() -> None:
    progress = Progress(
        step=1200,
        epoch=1,
        samples=300,
        total_samples=1000,
        samples_per_second=143000.4,
        loss=0.5321,
        auc=0.7512,
        rows=63211,
        staleness=4,
        memory_bytes=812 << 20,
        refused=3,
        eta_seconds=42,
    )
    assert progress_line(progress) == (
        "epoch 2 step 1,200  30% | 143,000 samples/s | loss 0.5321 | AUC 0.7512 | 63,211 rows | staleness 4"
        " | 812 MiB | 3 steps refused | 0:42 left"
    )
    assert progress_line(Progress(samples=1234)).startswith("epoch 1 step 0 1,234 samples | ")


def test_progress_line_with_shards_tells_of_the_traffic() -> None:
    progress = Progress(
        push_seconds=0.0031,
        sent_bytes_per_sample=1000.4,
        received_bytes_per_sample=300,
        distinct_ratio=0.234,
        others_missed=2.34,
        shard_rows=(5, 6),
        shard_busy=(0.5, 0.12),
        stage_seconds={"read": 1.0, "lookup": 1.0, "dense": 2.0},
    )
    assert " | staleness 0 (others 2.3) | " in progress_line(progress)
    assert " | wait 25% | push 3.1 ms | 1,300 B/sample | 23% distinct | shards 50% 12% busy" in progress_line(
        progress
    )


def test_progress_line_fits_the_terminal() -> None:
    progress = Progress(
        step=123_456,
        epoch=11,
        samples=300_000_000,
        total_samples=1_000_000_000,
        samples_per_second=1_430_000.4,
        loss=0.5321,
        auc=0.7512,
        rows=632_110_000,
        staleness=4,
        memory_bytes=812 << 30,
        refused=3,
        eta_seconds=42_000,
        distinct_ratio=0.5,
        others_missed=2.0,
        shard_rows=(1,) * 8,
        shard_busy=(0.5,) * 8,
    )
    whole = progress_line(progress)
    assert len(whole) > 160
    for width in (160, 120, 100, 80, 60):
        line = progress_line(progress, width)
        assert len(line) <= width
        assert line.startswith("epoch 12 step 123,456  30% | ")
        assert "loss 0.5321 | AUC 0.7512" in line
        assert set(line.split(" | ")) <= set(whole.split(" | "))
    shown, left_out = whole.split(" | "), list[str]()
    for width in range(len(whole) - 1, 59, -1):
        now = progress_line(progress, width).split(" | ")
        left_out += [part.split()[-1] for part in shown if part not in now]
        shown = now
    assert left_out == [
        *("distinct", "B/sample", "ms", "busy", "2.0)", "0%", "GiB", "rows", "samples/s", "left", "refused")
    ]
    assert progress_line(progress, 10) == "epoch 12 step 123,456  30% | loss 0.5321 | AUC 0.7512"
    assert progress_line(progress, 80).endswith("30% | loss 0.5321 | AUC 0.7512 | 3 steps refused")
    assert progress_line(progress, len(whole)) == whole


def test_the_kept_pass_is_named() -> None:
    history = ({"auc": 0.6, "ne": math.nan}, {"auc": 0.8, "ne": math.nan}, {"auc": 0.7, "ne": math.nan})
    for kept, number in ((history[1], 2), (history[2], 3)):
        stream = io.StringIO()
        ProgressLine(stream).finished(replace(RESULT, metrics=dict(kept), history=history))
        assert f"kept: the weights of epoch {number} of 3" in stream.getvalue().splitlines()
    stream = io.StringIO()
    ProgressLine(stream).finished(replace(RESULT, metrics={}, history=()))
    assert "kept" not in stream.getvalue()
