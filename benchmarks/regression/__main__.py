"""Test RMSE of predicted book ratings, by satrap and by the same network in plain PyTorch.

`python -m benchmarks.regression [--seeds 1 2 3] [--epochs 2]` uses the bundled goodbooks ratings. It also
trains satrap on ratings a thousand times as large, with and without scaling the label by mean and deviation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from pyarrow import csv
from torch import Tensor, nn

import satrap
from benchmarks.record import write

FILE = Path(satrap.__file__).parent / "quickstart" / "ratings.csv.gz"
DIM, HIDDEN, BATCH, MEMBERS = 16, 64, 1024, {"train": tuple(range(9)), "test": (9,)}


def by_satrap(seed: int, epochs: int, *, times: float = 1.0, scaled: bool = True) -> float:
    """Return the test RMSE, in stars, of a model of `times` the rating."""
    torch.manual_seed(seed)
    table = csv.read_csv(FILE)
    columns = {name: table[name].to_numpy() for name in ("user_id", "book_id")}
    columns["rating"] = table["rating"].to_numpy() * times
    scaling = {} if scaled else {"mean": 0.0, "std": 1.0}
    schema = satrap.Schema(
        [satrap.Label(name="rating", kind="regression", **scaling)],
        {"user_id": satrap.Categorical(dim=DIM), "book_id": satrap.Categorical(dim=DIM)},
    )
    train, test = (
        satrap.data.read(columns, schema, batch_size=BATCH, rows=satrap.data.RowSplit(10, members))
        for members in MEMBERS.values()
    )
    train = train.with_options(shuffle=True, seed=seed, buffer_rows=1_000_000)
    schema = satrap.data.measure(schema, train)
    trainer = satrap.Trainer(
        satrap.models.DNN(schema, hidden=[HIDDEN]),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        store=satrap.store.StoreConfig(seed=seed),
    )
    trainer.fit(train.with_options(schema=schema), epochs=epochs)
    rmse = trainer.evaluate(test.with_options(schema=schema))["rmse"] / times
    trainer.close()
    return rmse


class Plain(nn.Module):
    """Two embeddings and an MLP with one hidden layer, as a PyTorch user writes them."""

    def __init__(self, users: int, books: int) -> None:
        super().__init__()
        self.user, self.book = nn.Embedding(users, DIM, sparse=True), nn.Embedding(books, DIM, sparse=True)
        self.net = nn.Sequential(nn.Linear(2 * DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        for table in (self.user, self.book):
            nn.init.uniform_(table.weight, -0.01, 0.01)
        for layer in (self.net[0], self.net[2]):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Return float32[size] from int64[size, 2]."""
        output: Tensor = self.net(torch.cat([self.user(ids[:, 0]), self.book(ids[:, 1])], dim=1))
        return output.squeeze(1)


def by_pytorch(seed: int, epochs: int) -> float:
    """Return the test RMSE, in stars."""
    torch.manual_seed(seed)
    table = csv.read_csv(FILE)
    ids = torch.from_numpy(np.stack([table["user_id"].to_numpy(), table["book_id"].to_numpy()], axis=1))
    rating = torch.from_numpy(table["rating"].to_numpy().astype(np.float32))
    rows = torch.arange(len(rating))
    train, test = rows[rows % 10 < 9], rows[rows % 10 == 9]
    mean, std = rating[train].mean(), rating[train].std(correction=0)
    users, books = (int(highest) + 1 for highest in ids.max(dim=0).values)
    model = Plain(users, books)
    rowwise = torch.optim.Adagrad([model.user.weight, model.book.weight], lr=0.05)
    dense = torch.optim.Adam(model.net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(BATCH):
            loss = nn.functional.mse_loss(model(ids[batch]), (rating[batch] - mean) / std)
            rowwise.zero_grad()
            dense.zero_grad()
            loss.backward()
            rowwise.step()
            dense.step()
    with torch.no_grad():
        errors = mean + std * model(ids[test]) - rating[test]
    return float(errors.double().square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=2)
    a = parser.parse_args()
    ways = {
        "satrap": lambda seed: by_satrap(seed, a.epochs),
        "PyTorch": lambda seed: by_pytorch(seed, a.epochs),
        "satrap, 1000 times the rating": lambda seed: by_satrap(seed, a.epochs, times=1000.0),
        "the same, not scaled": lambda seed: by_satrap(seed, a.epochs, times=1000.0, scaled=False),
    }
    results = {}
    for name, way in ways.items():
        start = time.monotonic()
        rmses = [way(seed) for seed in a.seeds]
        results[name] = {"rmse": statistics.mean(rmses), "by_seed": rmses}
        print(f"{name}: RMSE {statistics.mean(rmses):.4f} ({time.monotonic() - start:.0f} s)", flush=True)
    print(write(Path(__file__).parent / "results", vars(a), results))


if __name__ == "__main__":
    main()
