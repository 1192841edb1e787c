"""`python -m tools_dev.chaos.rank ROWS FOLDER RESUME DEADLINE`: a rank of `rank_kills`.

It prints the number of each step, and ends with `LOST` and an error once another rank is gone.
"""

from __future__ import annotations

import os
import sys

import torch

import satrap
from satrap.errors import ExchangeError
from satrap.train import Checkpointing, Observer, Progress, WorkerContext

LOST = 3
"""Exit code of a rank that lost another."""


class Tell(Observer):
    def step(self, progress: Progress) -> None:
        print(progress.step, flush=True)


def main(rows: str, folder: str, resume: str, deadline: str) -> None:
    place = WorkerContext.from_environment(threads=1, deadline=float(deadline))
    schema = satrap.Schema(
        ["clicked"],
        {"user": satrap.Categorical(dim=4), "item": satrap.Categorical(dim=4), "price": satrap.Numeric()},
    )
    torch.manual_seed(1)
    trainer = satrap.Trainer(
        satrap.models.DNN(schema, hidden=[8], dropout=0.2),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        mode="sync",
        place=place,
    )
    data = satrap.data.read(rows, schema, batch_size=20).with_options(**place.share)
    checkpoint = Checkpointing(folder + "/checkpoints", every_steps=7, delta_every_steps=3)
    trainer.fit(data, epochs=12, checkpoint=checkpoint, resume=resume == "yes", observers=[Tell()])
    trainer.save(folder + "/model")
    place.workers.close()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ExchangeError as error:
        print(f"lost: {error}", flush=True)
        os._exit(LOST)
