"""Each alert comes when it should, and not when it should not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from satrap.tools.deploy import alerts
from satrap.tools.deploy.alerts import ALERTS
from satrap.tools.deploy.text import to_yaml
from tests.tools.deploy.metric_names import unknown

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (package prometheus)")
MINUTES = 60

# Alert -> values by minute of series that make it fire at the end of an hour, and of some that must not.
# In promtool's words "a+bxn" is a, a+b, ... n times.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "SatrapProcessDown": (
        {"up{T}": "1x57 0 0 0"},
        {"up{T}": "1x58 0 0", 'up{job="other"}': "0x60"},
    ),
    "SatrapNoSteps": (
        {"satrap_worker_steps_total{T}": "0+100x30 3000x30"},
        {"satrap_worker_steps_total{T}": "0+100x45 4500x15"},
    ),
    "SatrapRestarts": (
        {"process_start_time_seconds{T}": "100x40 200x10 300x10"},
        {"process_start_time_seconds{T}": "100x20 200x20 300x20"},
    ),
    "SatrapRefusedSteps": (
        {"satrap_worker_refused_steps_total{T}": "0x55 1x5"},
        {"satrap_worker_refused_steps_total{T}": "0x20 1x40"},
    ),
    "SatrapRefusedRequests": (
        {"satrap_shard_refused_requests_total{T}": "0x55 3x5"},
        {"satrap_shard_refused_requests_total{T}": "3x60"},
    ),
    "SatrapStrangers": (
        {"satrap_shard_malformed_messages_total{T}": "0x55 1x5"},
        {"satrap_shard_malformed_messages_total{T}": "1x60"},
    ),
    "SatrapLostMessages": (
        {"satrap_worker_resent_requests_total{T}": "0x40 1+1x20"},
        {"satrap_worker_resent_requests_total{T}": "0x55 1+1x5"},
    ),
    "SatrapShardBusy": (
        {"satrap_shard_busy_seconds_total{T}": "0+57x60"},
        {"satrap_shard_busy_seconds_total{T}": "0+51x60"},
    ),
    "SatrapWaitsForData": (
        {'satrap_worker_stage_seconds_total{T,stage="read"}': "0+36x60"},
        {
            'satrap_worker_stage_seconds_total{T,stage="read"}': "0+24x60",
            'satrap_worker_stage_seconds_total{T,stage="dense"}': "0+36x60",
        },
    ),
    "SatrapMemoryFull": (
        {
            "satrap_shard_evicted_rows_total{T}": "0+60x60",
            "satrap_shard_created_rows_total{T}": "0+100x60",
        },
        {
            "satrap_shard_evicted_rows_total{T}": "0+40x60",
            "satrap_shard_created_rows_total{T}": "0+100x60",
        },
    ),
    "SatrapServerFails": (
        {
            'satrap_serve_answers_total{T,status="200"}': "0+60x60",
            'satrap_serve_answers_total{T,status="503"}': "0+2x60",
        },
        {
            'satrap_serve_answers_total{T,status="200"}': "0+600x60",
            'satrap_serve_answers_total{T,status="503"}': "0+2x60",
            'satrap_serve_answers_total{T,status="422"}': "0+90x60",
        },
    ),
    "SatrapServerRefusesVersions": (
        {"satrap_serve_refused_versions_total{T}": "0x55 1x5"},
        {"satrap_serve_refused_versions_total{T}": "0x20 1x40"},
    ),
    "SatrapServerBehind": (
        {"satrap_serve_newest_step{T}": "100x40 200x20", "satrap_serve_step{T}": "100x60"},
        {"satrap_serve_newest_step{T}": "100x55 200x5", "satrap_serve_step{T}": "100x60"},
    ),
    "SatrapServerBusy": (
        {
            'satrap_serve_stage_seconds_total{T,stage="network"}': "0+50x60",
            'satrap_serve_stage_seconds_total{T,stage="encode"}': "0+7x60",
        },
        {
            'satrap_serve_stage_seconds_total{T,stage="network"}': "0+45x60",
            'satrap_serve_stage_seconds_total{T,stage="wait"}': "0+600x60",
        },
    ),
    "SatrapServerMissingIds": (
        {
            'satrap_serve_missing_ids_total{T,table="user"}': "0+60x60",
            'satrap_serve_looked_up_ids_total{T,table="user"}': "0+100x60",
        },
        {
            'satrap_serve_missing_ids_total{T,table="user"}': "0+40x60",
            'satrap_serve_looked_up_ids_total{T,table="user"}': "0+100x60",
        },
    ),
    "SatrapFewDescriptors": (
        {"process_open_fds{T}": "900x60", "process_max_fds{T}": "1000x60"},
        {"process_open_fds{T}": "700x60", "process_max_fds{T}": "1000x60"},
    ),
}
TARGET = 'job="satrap",run="r",role="shard",number="0",instance="shard-0"'


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_rules_name_what_is_exported(alert: object) -> None:
    assert unknown(getattr(alert, "expr")) == set()  # noqa: B009


def test_every_rule_has_a_case() -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]


def case(name: str, series: dict[str, str], firing: int) -> dict[str, object]:
    return {
        "name": f"{name} {firing}",
        "interval": "1m",
        "input_series": [
            {"series": s.replace("T", TARGET, 1) if "{T" in s else s, "values": v} for s, v in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": firing}],
            }
        ],
    }


def promtool(folder: Path, *command: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], cwd=folder, capture_output=True, text=True, check=False)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


@needs_promtool
def test_rules_come_when_they_should_and_not_when_they_should_not(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(to_yaml(alerts()))
    said = promtool(tmp_path, "check", "rules", "alerts.yaml")
    assert said.startswith("0\n"), said
    assert f"{len(ALERTS)} rules found" in said
    tests = [
        case(name, series, 1 - quiet) for name, both in CASES.items() for quiet, series in enumerate(both)
    ]
    (tmp_path / "tests.yaml").write_text(
        to_yaml({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    said = promtool(tmp_path, "test", "rules", "tests.yaml")
    assert said.startswith("0\n"), said


def test_the_document_lists_them() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    listed = re.findall(r"^\| `(Satrap\w+)` \| (\w+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(alert.name, alert.severity) for alert in ALERTS]


def test_how_long_they_wait() -> None:
    [group] = alerts()["groups"]
    assert {rule["alert"]: rule.get("for") for rule in group["rules"]} == {
        "SatrapProcessDown": "2m",
        "SatrapNoSteps": "15m",
        "SatrapRestarts": None,
        "SatrapRefusedSteps": None,
        "SatrapRefusedRequests": None,
        "SatrapStrangers": None,
        "SatrapLostMessages": "10m",
        "SatrapShardBusy": "15m",
        "SatrapWaitsForData": "15m",
        "SatrapMemoryFull": "30m",
        "SatrapServerFails": "5m",
        "SatrapServerRefusesVersions": None,
        "SatrapServerBehind": "10m",
        "SatrapServerBusy": "10m",
        "SatrapServerMissingIds": "30m",
        "SatrapFewDescriptors": "5m",
    }
    assert group["rules"][0] == {
        "alert": "SatrapProcessDown",
        "expr": 'up{role=~"worker|shard|loader|embedding-worker|server"} == 0',
        "for": "2m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "{{ $labels.instance }} of run {{ $labels.run }} does not answer",
            "description": ALERTS[0].action,
        },
    }
