"""Grafana can read the dashboard, and its queries name what satrap exports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from satrap.tools.deploy import dashboard
from satrap.tools.deploy.dashboard import PANELS, queries
from tests.tools.deploy.kept import missing
from tests.tools.deploy.metric_names import TARGET_LABELS, unknown


@pytest.mark.parametrize("query", queries("a", "1m"))
def test_queries_name_what_is_exported(query: str) -> None:
    assert unknown(query) == set()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("satrap_worker_steps", {"satrap_worker_steps"}),  # its samples end in _total
        ("rate(satrap_worker_samplez_total[1m])", {"satrap_worker_samplez_total"}),
        ('process_open_files{role="x"}', {"process_open_files"}),
        ('sum by (le, who) (satrap_shard_rows{rune="x"})', {"who", "rune"}),
    ],
)
def test_a_name_that_is_not_exported_is_found(query: str, found: set[str]) -> None:
    assert unknown(query) == found


def test_legends_name_labels_that_are_there() -> None:
    for panel in PANELS:
        for query, legend in panel.queries:
            labels = set(re.findall(r"{{(\w+)}}", legend))
            kept = re.findall(r"\bby \(([^)]*)\)", query)
            there = {name.strip() for name in kept[0].split(",")} if kept else TARGET_LABELS
            assert labels <= there, panel.title


def read(made: dict[str, Any]) -> Any:
    """What Grafana's own model keeps of a dashboard."""

    def plain(value: Any) -> Any:
        return value.to_json()

    return json.loads(json.dumps(Dashboard.from_json(json.loads(json.dumps(made))), default=plain))


def test_grafanas_own_model_knows_every_field() -> None:
    made = dashboard()
    assert missing(made, read(made)) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    made = dashboard()
    made["panels"][1]["gridPosition"] = made["panels"][1].pop("gridPos")
    made["refreshEvery"] = "1s"
    assert missing(made, read(made)) == [".panels[1].gridPosition", ".refreshEvery"]


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels) == len(PANELS)


def test_queries_follow_the_variables() -> None:
    made = dashboard()
    for panel in made["panels"]:
        for target in panel["targets"]:
            assert 'run=~"$run"' in target["expr"]
            assert "$window" not in target["expr"]
    names = [variable["name"] for variable in made["templating"]["list"]]
    assert names == ["datasource", "run"]


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_whole_panels() -> None:
    panels = dashboard()["panels"]
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in panels[:5]]
    assert places == [(0, 0, 8, 8), (8, 0, 8, 8), (16, 0, 8, 8), (0, 8, 8, 8), (8, 8, 8, 8)]
    plain, stacked = {"lineWidth": 1, "fillOpacity": 10}, {"mode": "normal", "group": "A"}
    assert {panel["title"] for panel in panels if panel["fieldConfig"]["defaults"]["custom"] != plain} == {
        "Time of a worker, by stage",
        "Rows",
        "Responses of servers per second",
        "Time of a server, by stage",
        "Time of a response, by stage",
    }
    assert panels[3]["fieldConfig"]["defaults"]["custom"] == {
        "lineWidth": 1,
        "fillOpacity": 40,
        "stacking": stacked,
    }
    (staleness,) = [panel for panel in panels if panel["title"] == "Staleness"]
    buckets = (
        'sum by (le, whose) (rate(satrap_worker_staleness_updates_bucket{run=~"$run"}[$__rate_interval]))'
    )
    assert staleness == {
        "id": 6,
        "type": "timeseries",
        "title": "Staleness",
        "description": "Updates that a lookup did not see: the worker's own updates, and updates of other "
        "workers.",
        "datasource": SOURCE,
        "gridPos": {"x": 16, "y": 8, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": "short", "custom": plain}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": letter,
                "datasource": SOURCE,
                "expr": f"histogram_quantile({share}, {buckets})",
                "legendFormat": f"{{{{whose}}}}, {percent}",
            }
            for letter, share, percent in (("A", "0.5", "50%"), ("B", "0.99", "99%"))
        ],
    }


def test_the_dashboard_itself() -> None:
    made = dashboard()
    del made["panels"]
    run = {"query": "label_values(satrap_role_info, run)", "refId": "run"}
    assert made == {
        "title": "satrap",
        "uid": "satrap",
        "tags": ["satrap"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Source", "query": "prometheus"},
                {
                    "type": "query", "name": "run", "label": "Run", "datasource": SOURCE, "query": run,
                    "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
                },
            ]
        },
    }  # fmt: skip
