"""`python -m benchmarks.serving.server URL [PRECISION]`: serves a model, prints its address."""

import sys

import torch

from satrap.config.keys.serving import ServingKeys
from satrap.serve.http.app import Application
from satrap.serve.http.server import ScoringServer, listening
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer
from satrap.train import Predictor

if __name__ == "__main__":
    torch.set_num_threads(1)
    listener = listening("127.0.0.1", 0, secret=None)
    model = ServedModel(
        "reference",
        Predictor.load(sys.argv[1], threads=1),
        precision=sys.argv[2] if len(sys.argv) > 2 else "float32",
    )
    with Scorer(model) as scorer:
        host, port = listener.getsockname()
        ScoringServer(Application(scorer, ServingKeys()), listener).run(
            lambda: print(f"{host}:{port}", flush=True)
        )
