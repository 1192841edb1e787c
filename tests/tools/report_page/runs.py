"""Reports of runs that never were, and a parser that refuses broken pages."""

from __future__ import annotations

from html.parser import HTMLParser

from satrap.tools.report_page import LabelCurves, RunReport, Scores, TableSize

NASTY = "<script>alert(\"1\")</script> & 'x'"
VOID = {"meta"}


class Page(HTMLParser):
    """The elements of a page; every one must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def full(name: str = "runs/a", *, auc: float = 0.75, user: str = "user") -> RunReport:
    """Return a report with everything in it."""
    return RunReport(
        name=name,
        recipe={
            "model.name": "dnn",
            "training.mode": "hybrid",
            "training.seed": 1,
            "training.staleness": 4,
            "about.floor.auc": 0.7,
        },
        recipe_text="model: {name: dnn}\n",
        sessions=[{"step": 0, "time": "2026-11-23T10:00:00+00:00", "torch": "2.13.0", "memory": 1 << 34}],
        metrics={
            "steps": 200,
            "samples": 2000,
            "seconds": 10.0,
            "samples_per_second": 200.0,
            "refused": 0,
            "stopped": "epochs",
            "staleness": {"0": 1, "2": 3},
            "traffic": {"stage_seconds": {"read": 1.0, "dense": 4.0}, "distinct_ratio": 0.5},
            "validation": {"auc": auc - 0.01, "samples": 100},
            "test": {"auc": auc, "logloss": 0.5, "samples": 100},
        },
        curves={
            "loss": [(50, 0.7), (100, 0.6)],
            "validation/logloss": [(100, 0.62)],
            "samples_per_second": [(50, 190.0), (100, 210.0)],
        },
        tables={user: TableSize(10, 1000), "item": TableSize(5, 2048)},
        scores=Scores(
            "validation",
            100,
            {"clicked": LabelCurves(auc, [(0, 0), (0.2, 0.6), (1, 1)], [(0.1, 0.12), (0.6, 0.55)])},
            80,
            {"auc": auc, "logloss": 0.5},
            {user: {"auc": 0.55, "logloss": 0.65}, "item": {"auc": 0.76, "logloss": 0.49}},
        ),
    )
