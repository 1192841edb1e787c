"""RecBole's SASRec on the same events, for comparison.

`python recbole_sasrec.py FOLDER OUTPUT.json [SEED]` in an environment with RecBole 1.2.1, which needs older
packages than satrap: ray <= 2.6.3, setuptools < 80, numpy < 2. Two layers, two heads, width 64, histories
of at most 50 films, cross-entropy over all films, RecBole's defaults otherwise, early stop on NDCG@10. A file
is written after each pass, with the metrics of the test if the pass is the best so far.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer
from recbole.utils import init_seed

SETTINGS = {
    "n_layers": 2,
    "n_heads": 2,
    "hidden_size": 64,
    "inner_size": 256,
    "MAX_ITEM_LIST_LENGTH": 50,
    "loss_type": "CE",
    "train_neg_sample_args": None,
    "train_batch_size": 256,
    "eval_batch_size": 1024,
    "learning_rate": 0.001,
    "epochs": 60,
    "stopping_step": 3,
    "valid_metric": "NDCG@10",
    "metrics": ["Recall", "NDCG"],
    "topk": [10],
    "eval_args": {
        "split": {"LS": "valid_and_test"},
        "order": "TO",
        "group_by": "user",
        "mode": {"valid": "full", "test": "full"},
    },
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
    "use_gpu": False,
    "show_progress": False,
    "state": "ERROR",
}


def ranked(model: SASRec, data: Any, earlier: dict[int, list[int]] | None) -> dict[str, float]:
    """Return Recall@10 and NDCG@10 of the one film of each user, without earlier films if they are given."""
    ranks = list[float]()
    model.eval()
    with torch.no_grad():
        for asked, _, places, films in data:
            scores = model.full_sort_predict(asked)
            own = scores[places, films].clone()
            scores[:, 0] = -torch.inf  # padding
            scores[places, films] = -torch.inf
            for row, user in enumerate(asked["user_id"].tolist()):
                scores[row, [] if earlier is None else earlier[user]] = -torch.inf
            ranks += (1 + (scores > own.unsqueeze(1)).sum(1)).tolist()
    found = np.array(ranks) <= 10
    gains = np.where(found, 1 / np.log2(1 + np.array(ranks)), 0.0)
    return {"recall@10": float(found.mean()), "ndcg@10": float(gains.mean())}


def main() -> None:
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.load = partial(torch.load, weights_only=False)  # RecBole's checkpoints hold more than tensors
    plain = folder / "ratings.csv"
    ratings = pd.read_csv(plain if plain.exists() else folder / "ratings.csv.gz")
    ratings = ratings.sort_values(["userId", "timestamp", "movieId"], kind="stable")
    names = {"user_id:token": ratings["userId"], "item_id:token": ratings["movieId"]}
    # The number of the event instead of its time: films of the same second keep the order above.
    events = pd.DataFrame({**names, "timestamp:float": range(len(ratings))})
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "ml").mkdir()
        events.to_csv(Path(made) / "ml" / "ml.inter", sep="\t", index=False)
        where = {"data_path": made, "checkpoint_dir": made, "seed": seed}
        config = Config(model="SASRec", dataset="ml", config_dict=SETTINGS | where)
        init_seed(seed, True)
        dataset = create_dataset(config)
        train, validation, test = data_preparation(config, dataset)
        model = SASRec(config, train.dataset)
        trainer = Trainer(config, model)
        pairs = zip(
            dataset.token2id("user_id", names["user_id:token"].astype(str).to_numpy()),
            dataset.token2id("item_id", names["item_id:token"].astype(str).to_numpy()),
            strict=True,
        )
        films: dict[int, list[int]] = {}
        for user, film in pairs:
            films.setdefault(int(user), []).append(int(film))
        earlier = {user: each[:-1] for user, each in films.items()}
        curve, best, start = list[dict[str, Any]](), 0.0, time.process_time()

        def passed(epoch: int, score: float) -> None:
            nonlocal best
            found: dict[str, Any] = {
                "pass": epoch + 1,
                "ndcg@10": float(score),
                "processor_seconds": time.process_time() - start,
            }
            if score > best:
                best = score
                found["test"] = {
                    "recbole": dict(trainer.evaluate(test, load_best_model=False, show_progress=False)),
                    "all films": ranked(model, test, None),
                    "earlier films excluded": ranked(model, test, earlier),
                }
            curve.append(found)
            print(found, flush=True)
            output.write_text(
                json.dumps({"settings": SETTINGS, "seed": seed, "curve": curve}, indent=2) + "\n"
            )

        trainer.fit(train, validation, saved=True, show_progress=False, callback_fn=passed)


if __name__ == "__main__":
    main()
