"""Train a click model in a plain PyTorch loop, stop, and continue from a checkpoint.

    python examples/own_loop/plain.py [FOLDER]

The rows of ids are in a store; the network, the loss, the loader and the loop are PyTorch's. FOLDER is for
the checkpoint, by default a new one for temporary files.
"""

import random
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import satrap


def make_rows(count: int = 4000) -> list[dict]:
    """Return made-up clicks: a user likes some tags, and the price matters little."""
    rng = random.Random(0)
    liked = {user: rng.sample(range(12), 4) for user in range(200)}
    rows = []
    for _ in range(count):
        user, tags, price = rng.randrange(200), rng.sample(range(12), rng.randint(0, 3)), rng.random()
        score = sum(1.5 if tag in liked[user] else -1 for tag in tags) - price + rng.gauss(0, 0.5)
        rows.append({"user": f"u{user}", "tags": tags, "price": price, "clicked": float(score > 0)})
    return rows


def collate(rows: list[dict]) -> dict:
    """Return columns: ids as lists, numbers as tensors."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return columns | {name: torch.tensor(columns[name]) for name in ("price", "clicked")}


class ClickModel(nn.Module):
    """Embeddings of a user and tags, whose product and price decide."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.embeddings = satrap.nn.EmbeddingCollection(
            {
                "user": satrap.Categorical(dim=dim),
                "tags": satrap.Categorical(dim=dim, multi=True),
            },
            optimizer=satrap.optim.Adagrad(lr=0.1),
            store=satrap.store.StoreConfig(initial_scale=0.1),
        )
        self.network = nn.Linear(2 * dim + 1, 1)

    def forward(self, batch: dict) -> torch.Tensor:
        vectors = self.embeddings(batch)
        user, tags = vectors["user"], vectors["tags"]
        rest = self.network(torch.cat([user, tags, batch["price"][:, None]], dim=1))
        return (user * tags).sum(1) + rest[:, 0]


def loss_of(model: nn.Module, batch: dict) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(batch), batch["clicked"])


def train(model: ClickModel, optimizers: list, loader: DataLoader) -> float:
    """Train for one epoch; return the mean loss."""
    model.train()
    losses = []
    for batch in loader:
        loss = loss_of(model, batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: ClickModel, loader: DataLoader) -> float:
    """Return the mean loss; users that training has not seen get no rows."""
    model.eval()
    losses = [loss_of(model, batch).item() for batch in loader]
    return sum(losses) / len(losses)


def optimizers_of(model: ClickModel) -> list:
    return [torch.optim.Adam(model.network.parameters(), lr=1e-2), satrap.nn.RowOptimizer(model.embeddings)]


def main(folder: Path) -> tuple[float, float]:
    rows = make_rows()
    loader = DataLoader(rows[:3600], batch_size=64, shuffle=True, collate_fn=collate)
    test = DataLoader(rows[3600:], batch_size=64, collate_fn=collate)

    torch.manual_seed(0)
    model = ClickModel()
    optimizers = optimizers_of(model)
    for epoch in range(3):
        print(f"epoch {epoch}: loss {train(model, optimizers, loader):.4f}, test {evaluate(model, test):.4f}")

    model.embeddings.save(str(folder / "rows"))  # first the rows: state_dict refers to them
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states}, folder / "state.pt")
    before = evaluate(model, test)
    model.embeddings.close()

    again = ClickModel()
    optimizers = optimizers_of(again)
    saved = torch.load(folder / "state.pt")
    again.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    after = evaluate(again, test)
    print(f"loaded: test {after:.4f}")
    again.embeddings.close()
    return before, after


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp()))
