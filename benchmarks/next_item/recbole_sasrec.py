"""RecBole's SASRec on the same events, for comparison.

`python recbole_sasrec.py FOLDER OUTPUT.json [SEED]` in an environment with RecBole 1.2.1, which needs older
packages than satrap: ray <= 2.6.3, setuptools < 80, numpy < 2. Two layers, two heads, width 64, histories
of at most 50 films, cross-entropy over all films, RecBole's defaults otherwise, early stop on NDCG@10.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

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
    "train_batch_size": 512,
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
        curve, best, start = list[dict[str, Any]](), 0.0, time.perf_counter()

        def passed(epoch: int, score: float) -> None:
            nonlocal best
            found: dict[str, Any] = {
                "pass": epoch + 1,
                "ndcg@10": float(score),
                "seconds": time.perf_counter() - start,
            }
            if score > best:
                best = score
                found["test"] = dict(trainer.evaluate(test, load_best_model=False, show_progress=False))
            curve.append(found)
            print(found, flush=True)
            output.write_text(
                json.dumps({"settings": SETTINGS, "seed": seed, "curve": curve}, indent=2) + "\n"
            )

        trainer.fit(train, validation, saved=True, show_progress=False, callback_fn=passed)


if __name__ == "__main__":
    main()
