"""The metrics of a score server."""

from __future__ import annotations

from time import time
from typing import Any

from satrap.serve.http.app import Application
from satrap.serve.request_log import LogStatistics
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.shadow import ShadowStatistics
from satrap.serve.versions.watch import FollowerStatistics


def server_values(scorer: Scorer, application: Application, following: FollowerStatistics) -> dict[str, Any]:
    """Return the available values of a server's metrics, see `satrap.openmetrics.METRICS`."""
    model, counters = scorer.model, scorer.statistics
    stages = {
        **application.seconds,
        "wait": counters.wait_seconds,
        **model.seconds.by_stage(),
    }
    looked_up = model.looked_up()
    memory, tier = model.stored()
    log = LogStatistics() if application.log is None else application.log.statistics
    return {
        "satrap_role": {"role": "server", "index": ""},
        "satrap_serve_step": model.step,
        "satrap_serve_age_seconds": time() - model.published,
        "satrap_serve_answers": dict(application.answers),
        "satrap_serve_items": counters.rows,
        "satrap_serve_batches": counters.batches,
        "satrap_serve_queued_requests": scorer.queued,
        "satrap_serve_late_requests": counters.late,
        "satrap_serve_abandoned_requests": counters.abandoned,
        "satrap_serve_stage_seconds": stages,
        "satrap_serve_looked_up_ids": {table: ids for table, (ids, _) in looked_up.items()},
        "satrap_serve_missing_ids": {table: missing for table, (_, missing) in looked_up.items()},
        "satrap_serve_newest_step": max(following.latest, model.step),
        "satrap_serve_loaded_versions": following.updates,
        "satrap_serve_reloads": following.reloads,
        "satrap_serve_refused_versions": following.refused,
        "satrap_serve_load_seconds": following.seconds,
        "satrap_serve_logged_items": log.written,
        "satrap_serve_lost_log_items": log.lost,
        "satrap_serve_rows": sum(model.rows().values()),
        "satrap_serve_memory_bytes": memory,
        "satrap_serve_tier_rows": tier.rows,
        "satrap_serve_tier_read_rows": tier.reads,
        "satrap_serve_earlier_versions": len(model.history.steps),
        "satrap_serve_earlier_bytes": model.history.bytes,
        "satrap_serve_rollbacks": following.rollbacks,
        **({} if application.shadow is None else shadow_values(application.shadow.statistics)),
    }


def shadow_values(shadow: ShadowStatistics) -> dict[str, Any]:
    """Return the values of a shadow's metrics."""
    predictions = shadow.predictions.copy()
    return {
        "satrap_serve_shadow_step": shadow.step,
        "satrap_serve_shadow_answers": shadow.answers,
        "satrap_serve_shadow_dropped_requests": shadow.dropped,
        "satrap_serve_shadow_failed_requests": shadow.failed,
        "satrap_serve_shadow_mean": {name: p.shadow for name, p in predictions.items()},
        "satrap_serve_shadow_served_mean": {name: p.served for name, p in predictions.items()},
        "satrap_serve_shadow_difference": {name: p.difference for name, p in predictions.items()},
    }
