"""The same DLRM in plain PyTorch: `nn.EmbeddingBag(sparse=True)`, a sparse optimizer, an ordinary loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import satrap
from benchmarks.train_vs_pytorch.workload import Samples
from satrap.batch import EmbeddedBatch

Layout = Literal["one_table", "per_feature"]

SPARSE_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "adagrad": lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr),
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "adam": lambda parameters, lr: torch.optim.SparseAdam(parameters, lr=lr),
}


class Bags(nn.Module):
    """Embeddings of all features: one shared table addressed by offset ids, or one table per feature.

    One table makes one call to PyTorch's kernels and one coalesced gradient a step instead of 26.
    """

    starts: Tensor | None

    def __init__(self, sizes: npt.NDArray[np.int64], dim: int, layout: Layout) -> None:
        super().__init__()
        rows = [int(sizes.sum())] if layout == "one_table" else [int(size) for size in sizes]
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, dim, sparse=True, mode="sum") for n in rows)
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.register_buffer("starts", torch.from_numpy(starts) if layout == "one_table" else None)
        self.features = len(sizes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return float32[size, features, dim] from int64[size, features]."""
        if self.starts is not None:
            return self.tables[0]((ids + self.starts).view(-1, 1)).view(len(ids), self.features, -1)
        return torch.stack([table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)], dim=1)


class Plain:
    """A training loop as a PyTorch user writes it, on the same network as satrap's.

    Args:
        network: gets an `EmbeddedBatch`.
        schema: of the samples.
        bags: given int64[size, features], returns float32[size, features, dim].
        sparse: optimizer of `bags`.
        precision: of the network, "float32" or "bfloat16".
        device: of the network and of `bags`.
    """

    def __init__(
        self,
        network: nn.Module,
        schema: satrap.Schema,
        bags: nn.Module,
        *,
        sparse: Any,
        precision: str,
        device: str = "cpu",
    ) -> None:
        self.network, self.bags, self.device = network.to(device), bags.to(device), torch.device(device)
        self.names = tuple(schema.categorical)
        self.sparse = sparse
        self.dense = torch.optim.Adam(network.parameters(), lr=1e-3)
        self.loss = nn.BCEWithLogitsLoss()
        self.precision = precision

    def fit(self, samples: Samples, batch_size: int) -> None:
        """Train one epoch over samples in memory, as contiguous arrays."""
        numeric, ids = torch.from_numpy(samples.numeric), torch.from_numpy(samples.ids)
        labels = torch.from_numpy(samples.labels).unsqueeze(1)
        for start in range(0, len(labels), batch_size):
            part = slice(start, start + batch_size)
            inputs = [tensor[part].to(self.device) for tensor in (ids, numeric, labels)]
            loss = self.loss(self.logits(inputs[0], inputs[1]), inputs[2])
            self.sparse.zero_grad()
            self.dense.zero_grad()
            loss.backward()
            self.sparse.step()
            self.dense.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def logits(self, ids: Tensor, numeric: Tensor) -> Tensor:
        """Return float32[size, 1]."""
        block = self.bags(ids)
        embeddings = dict(zip(self.names, block.unbind(1), strict=True))
        batch = EmbeddedBatch(len(ids), embeddings, numeric, blocks=[(self.names, block)])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits: Tensor = self.network(batch)
        return logits.float()
