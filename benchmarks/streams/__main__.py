"""The cost of an hour of delay: AUC of a model published each hour, and of one trained on all earlier events.

`python -m benchmarks.streams DATA [--day 100000] [--seeds 5]`

DATA is the folder of data sets with `movielens_latest_small`. Its ratings, in the order of their times, are a
stream with `--day` events per day: rating >= 4 is the label, user, movie and genres are features. An hour is
1/24 of a day. "hourly": the ratings of an hour are scored by the model at the beginning of the hour. "fresh":
each batch of `--batch` ratings is scored by the forward pass of its own training step, as by a model that is
published every few seconds. Both are scores of the same run, which trains on each rating once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import log_loss, roc_auc_score

import satrap
from benchmarks.record import write
from satrap.batch import EmbeddedBatch
from satrap.store import StoreConfig


def ratings(folder: Path) -> pd.DataFrame:
    """Return the ratings in the order of their times."""
    place = folder / "movielens_latest_small"
    rows = pd.read_csv(place / "ratings.csv.gz", dtype={"timestamp": str})
    times = pd.to_numeric(rows["timestamp"].str.extract(r"(\d+)", expand=False))
    movies = pd.read_csv(place / "movies.csv.gz")[["movieId", "genres"]]
    rows = rows.iloc[np.argsort(times.to_numpy(), kind="stable")].merge(movies, on="movieId", how="left")
    rows["liked"] = (rows["rating"] >= 4).astype(int)
    return rows[["userId", "movieId", "genres", "liked"]].reset_index(drop=True)


class Scores:
    """A loss that keeps its input scores, from before the step."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def __call__(self, logits: torch.Tensor, batch: EmbeddedBatch) -> torch.Tensor:
        """Return the log loss."""
        self.seen.append(torch.sigmoid(logits.detach()).reshape(-1).numpy())
        assert batch.labels is not None
        return torch.nn.functional.binary_cross_entropy_with_logits(logits.reshape(-1), batch.labels[:, 0])


def run(rows: pd.DataFrame, hour: int, batch: int, seed: int) -> dict[str, Any]:
    """Train on the stream once; return the metrics of both ways of scoring after the first tenth."""
    torch.manual_seed(seed)
    schema = satrap.Schema(
        ["liked"],
        {
            "userId": satrap.Categorical(dim=16),
            "movieId": satrap.Categorical(dim=16),
            "genres": satrap.Categorical(dim=16, multi=True, separator="|", pooling="mean"),
        },
    )
    fresh, hourly = Scores(), list[np.ndarray]()
    trainer = satrap.Trainer(
        satrap.models.DeepFM(schema, hidden=[64, 32]),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=fresh,
        mode="sync",
        store=StoreConfig(seed=seed),
    )
    for start in range(0, len(rows), hour):
        part = satrap.data.read(rows.iloc[start : start + hour], schema, batch_size=batch)
        hourly.append(trainer.predict(part)[:, 0])
        trainer.fit(part)
    trainer.close()
    judged = slice(len(rows) // 10, None)
    labels = rows["liked"].to_numpy()[judged]
    mean = np.full(len(labels), labels.mean())
    figures: dict[str, Any] = {}
    for name, scores in (("fresh", fresh.seen), ("hourly", hourly)):
        values = np.concatenate(scores)[judged]
        assert len(values) == len(labels)
        loss = log_loss(labels, values)
        figures[name] = {"auc": roc_auc_score(labels, values), "ne": loss / log_loss(labels, mean)}
    return figures


def main() -> None:
    """Run all seeds, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--day", type=int, default=100_000, help="ratings in a day")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = ratings(options.data)
    runs = [run(rows, options.day // 24, options.batch, seed) for seed in range(1, options.seeds + 1)]
    summary = {
        way: {key: [round(one[way][key], 5) for one in runs] for key in ("auc", "ne")}
        for way in ("fresh", "hourly")
    }
    for way, values in summary.items():
        print(f"{way:<7}" + ", ".join(f"{k} {np.mean(v):.4f} +- {np.std(v):.4f}" for k, v in values.items()))
    parameters = {"ratings": len(rows), "day": options.day, "hour": options.day // 24, "batch": options.batch}
    print(write(Path(__file__).parent / "results", parameters, summary))


if __name__ == "__main__":
    main()
