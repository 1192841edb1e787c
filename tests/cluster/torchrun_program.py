"""A user's own program, for torchrun to start."""

from __future__ import annotations

PROGRAM = """
import json, sys
import satrap
import torch

place = satrap.train.WorkerContext.from_environment(threads=1)
schema = satrap.Schema(["clicked"], {"user": satrap.Categorical(dim=4), "item": satrap.Categorical(dim=4)})
torch.manual_seed(1)
trainer = satrap.Trainer(
    satrap.models.DNN(schema, hidden=[8]),
    schema,
    embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
    dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    mode="sync",
    place=place,
)
data = satrap.data.read(sys.argv[1], schema, batch_size=50).with_options(**place.share)
result = trainer.fit(data, epochs=3)
metrics = trainer.evaluate(data)
trainer.save(sys.argv[2])
if place.workers.rank == 0:
    print(json.dumps({"samples": result.samples, "auc": metrics["auc"], "workers": place.workers.size}))
trainer.close()
place.workers.close()
"""
