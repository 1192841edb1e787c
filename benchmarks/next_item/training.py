"""Trains one model of the comparison and ranks all films for each user."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import torch

import satrap
from benchmarks.next_item.data_sets import Events
from benchmarks.next_item.ways import Way
from satrap.metrics import RankingMetrics
from satrap.settings.ranking import Ranking
from satrap.train import TrainingOptions

AT = 10
NAMES = (f"recall@{AT}", f"ndcg@{AT}")
EXCLUDED, ALL = "earlier films excluded", "all films"


def trained(way: Way, events: Events, seed: int) -> dict[str, Any]:
    """Return the metrics of the test rows after the pass that is best on the validation rows.

    The best pass has the largest NDCG@10 on validation rows. For models of users, as in RecBole, the
    candidates there leave out the films that a user has rated before.
    """
    label = satrap.Label(name="seen", implicit=True)
    schema = satrap.Schema([label], dict(way.features))
    torch.manual_seed(seed)
    model = satrap.models.create(way.model, schema, **way.options)
    trainer = satrap.Trainer(
        model,
        schema,
        embedding_optimizer=way.rows,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=way.network_lr),
        mode="sync",
        loss=way.loss,
        store=satrap.store.StoreConfig(initial_scale=way.initial_scale, seed=seed),
        training=TrainingOptions(
            ranking=Ranking((AT,), among="items", exclude="rated"),
            monitor=f"ndcg@{AT}",
            patience=way.patience,
        ),
    )

    def read(rows: pd.DataFrame, size: int = 256) -> satrap.data.Dataset:
        return satrap.data.read(rows, schema, batch_size=size)

    trainer.predictor.lists.rank_among(
        satrap.data.read(events.movies, satrap.Schema([], {"movie": schema.features["movie"]}))
    )
    rows = events.pairs if way.data == "pairs" else events.windows
    train = read(rows, way.batch).with_options(shuffle=True, seed=seed, buffer_rows=200_000)
    kept = events.validation if way.data == "pairs" else unrated(events.validation)
    start = time.process_time()
    result = trainer.fit(train, validation=read(kept), epochs=way.epochs)
    seconds = time.process_time() - start
    found = {
        part: {
            protocol: {name: trainer.evaluate(read(each))[name] for name in NAMES}
            for protocol, each in ((EXCLUDED, asked), (ALL, unrated(asked)))
        }
        for part, asked in (("validation", events.validation), ("test", events.test))
    }
    trainer.close()
    curve = [round(one[f"ndcg@{AT}"], 4) for one in result.history]
    return found | {"validation_ndcg_by_pass": curve, "processor_seconds": round(seconds, 1)}


def unrated(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows without films to exclude."""
    return rows.assign(rated=[[] for _ in range(len(rows))])


def popularity(events: Events) -> dict[str, Any]:
    """Return the metrics of films in the order of their training events, without a model."""
    counts = events.pairs["movie"].value_counts().reindex(events.movies["movie"], fill_value=0)
    scores, place = counts.to_numpy(), {movie: n for n, movie in enumerate(counts.index)}
    found: dict[str, Any] = {}
    for part, rows in (("validation", events.validation), ("test", events.test)):
        for protocol, each in ((EXCLUDED, rows), (ALL, unrated(rows))):
            metrics = RankingMetrics((AT,))
            for query, (movie, rated) in enumerate(zip(each["movie"], each["rated"], strict=True)):
                others = np.delete(scores, [place[one] for one in (*rated, movie)])
                rank, tied = (
                    1 + (others > scores[place[movie]]).sum(),
                    1 + (others == scores[place[movie]]).sum(),
                )
                one = np.array([query], np.uint64)
                metrics.update(one, one, np.array([rank]), tied=np.array([tied]))
            values = metrics.compute()
            found.setdefault(part, {})[protocol] = {name: values[name] for name in NAMES}
    return found
