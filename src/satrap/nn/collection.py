"""The embeddings of a loop of the user's own, as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from satrap.batch import Batch, EmbeddedBatch, JaggedRows
from satrap.data.python_batches import PythonBatches
from satrap.embedding import EmbeddingPlan, Embeddings, embeddings_of, tables_of
from satrap.errors import ConfigError, DataError
from satrap.exchange import Exchange, LocalExchange
from satrap.nn.lookups import OpenLookup, update
from satrap.nn.snapshot import Reference, read_rows, reference_to, write_rows
from satrap.optim import EMBEDDING_DEFAULT, Optimizer
from satrap.runtime.arguments import checked
from satrap.schema import Categorical, Schema, Table
from satrap.store import StoreConfig, open_store

MakeExchange = Callable[[Sequence[Table]], Exchange]


@checked(
    features='pass {"user": satrap.Categorical(dim=16)}, or a satrap.Schema',
    optimizer="use one of satrap.optim, for example satrap.optim.RowWiseAdagrad(lr=0.05)",
)
class EmbeddingCollection(nn.Module):
    """Embeds the ids of samples, with rows in a store instead of parameters.

    ```python
    embeddings = satrap.nn.EmbeddingCollection(
        {"user": satrap.Categorical(dim=16), "tags": satrap.Categorical(dim=16, multi=True, pooling="mean")},
        optimizer=satrap.optim.RowWiseAdagrad(lr=0.05),
    )
    vectors = embeddings({"user": users, "tags": (tag_ids, offsets)})
    logits = network(torch.cat([vectors["user"], vectors["tags"]], dim=1))
    ```

    The results take part in autograd, and a `RowOptimizer` trains the rows. In training mode, a forward pass
    creates the rows of new ids. In evaluation mode (`eval()`) and under `torch.no_grad()` it only reads: the
    results are constants, and a new id has the row that training would create for it.

    The rows are not in `state_dict`, which has only a reference to their last `save`. So save the rows
    first, each time in a new folder:

    ```python
    embeddings.save("rows/step-1000")
    torch.save(model.state_dict(), "step-1000.pt")
    model.load_state_dict(torch.load("step-1000.pt"))                # also reads rows/step-1000
    ```

    A collection trains in one process. `satrap.Trainer` trains in several.

    Args:
        features: name -> feature, or a schema, of which the categorical features count.
        optimizer: optimizer of the rows; default row-wise Adagrad with lr 0.05.
        store: initialization and limits of rows, see `satrap.store.StoreConfig`.
        exchange: given the tables, returns the exchange for their rows, for example a `ServersExchange`;
            default a store in this process.

    Attributes:
        schema: the features.
        optimizer: of the arguments.
        exchange: has the rows.
        steps: steps that trained rows so far.

    Raises:
        ConfigError: invalid arguments.
    """

    def __init__(
        self,
        features: Schema | Mapping[str, Categorical],
        *,
        optimizer: Optimizer = EMBEDDING_DEFAULT,
        store: StoreConfig = StoreConfig(),
        exchange: MakeExchange | None = None,
    ) -> None:
        super().__init__()
        self.schema = features if isinstance(features, Schema) else Schema(labels=[], features=features)
        if not self.schema.categorical:
            raise ConfigError("no feature is categorical, so the module would have no rows")
        self.optimizer, self.steps = optimizer, 0
        tables = tables_of(self.schema, optimizer, store=store)
        self.exchange = exchange(tables) if exchange else LocalExchange(open_store(store, tables))
        if self.exchange.collective or self.exchange.pooling is not None:
            self.exchange.close()
            raise ConfigError(
                "the exchange does not return the rows of single ids to one process",
                fix="use a LocalExchange or a ServersExchange, or train with satrap.Trainer",
            )
        of_ids = Schema(labels=[], features=self.schema.categorical, salt=self.schema.salt)
        self._columns = PythonBatches(of_ids)
        self._tables = {table.name: _described(table) for table in tables}
        self._reached: list[OpenLookup] = []  # lookups with a backward pass since the last step
        self._saved = Reference()
        self._place: Tensor
        self.register_buffer("_place", torch.empty(0), persistent=False)  # `to(device)` moves it
        self._plan, self._embeddings = self._on(self._place.device)

    def _on(self, device: torch.device) -> tuple[EmbeddingPlan, Embeddings]:
        return embeddings_of(self.exchange, self.schema, self.exchange.groups, device)

    def forward(self, inputs: Batch | Mapping[str, Any]) -> dict[str, Tensor | JaggedRows]:
        """Return the embedding of each feature.

        Args:
            inputs: column -> its values, with the columns of all features; others are ignored. Values are
                hashed as in files, so 7 and "7" have the same row in both. A column is a tensor, array, list
                or Series with one value per sample or, for `multi`, a list of values, in one of the forms:

                - lists of lists, or a tensor [samples, values];
                - (values, offsets), two tensors or arrays; sample i has `values[offsets[i]:offsets[i + 1]]`,
                  so offsets has samples + 1 entries;
                - {"values": values, "lengths": lengths}, or "offsets" instead of "lengths";
                - a nested tensor of PyTorch with layout `torch.jagged`.

                Or a batch of `satrap.data.read`.

        Returns:
            Feature -> float32[samples, dim], pooled and on the device of this module; for pooling "none"
            the rows with offsets, see `JaggedRows`. An empty list of ids gives zeros.

        Raises:
            DataError: a column is missing, or its values cannot be ids.
            StoreError: the store has no room for a new row.
        """
        return dict(self.embed(inputs).embeddings)

    def embed(self, inputs: Batch | Mapping[str, Any]) -> EmbeddedBatch:
        """Return the input of a model of `satrap.models`; otherwise as `forward`.

        Numbers, labels and weights come from a batch of `satrap.data.read`; from columns come only ids.
        """
        batch = inputs if isinstance(inputs, Batch) else self._columns.batch(inputs)
        for name in self.schema.categorical:
            if name not in batch.ids:
                raise DataError(f"a batch has no feature {name!r}", fix=f"give Batch.ids an entry {name!r}")
        if self._place.device != self._embeddings.device:
            self._plan, self._embeddings = self._on(self._place.device)
        ticket, trains = self._plan.ticket(batch), self.training and torch.is_grad_enabled()
        if trains:
            _check_alone()
        lookup = self.exchange.lookup(ticket.requests, create=trains)
        rows = self._embeddings.rows(lookup.result())
        opened = OpenLookup(lookup, rows, self._reached)
        rows = opened.seen() if trains else [each.detach() for each in rows]
        return self._embeddings.embed(ticket, rows)

    def _train(self, lr_scale: float) -> None:
        """Take a step with the gradients of all backward passes since the last one."""
        if self._reached and lr_scale:
            update(self.exchange, self._embeddings, self._reached, lr_scale)
            self.steps += 1
        self._forget()

    def _forget(self) -> None:
        """Forget the gradients of all backward passes since the last step."""
        for each in self._reached:
            each.forget()
        self._reached.clear()

    def save(self, url: str) -> None:
        """Write the rows with their optimizer state to a folder or fsspec URL, as one snapshot.

        An older snapshot there is replaced, and a `state_dict` that refers to it can no longer be loaded.
        `satrap checkpoint export` reads the folder.

        Raises:
            CheckpointError: it cannot be written.
            StoreError: the last update was refused.
        """
        settings = {"schema": self.schema.to_dict(), "tables": self._tables, "steps": self.steps}
        self._saved = write_rows(self.exchange, url, settings)

    def load(self, url: str) -> None:
        """Replace all rows with the rows of a snapshot of `save`; training then continues exactly.

        Raises:
            CheckpointError: the snapshot is missing, or damaged. If rows are, all rows are as new ones.
            ConfigError: its tables differ.
        """
        self._read(reference_to(url, self._tables))

    def get_extra_state(self) -> Tensor:
        """Return the reference to the saved rows, which is this module's part of `state_dict`.

        Raises:
            ConfigError: the rows have changed since they were saved.
        """
        if self._saved.steps != self.steps:
            counts = f"{self.steps:,} steps, {self._saved.steps:,} saved"
            raise ConfigError(
                f"the rows have changed since the last save: {counts}",
                why="state_dict has only a reference to saved rows",
                fix="call save(folder) of the EmbeddingCollection, then state_dict()",
            )
        return self._saved.tensor()

    def set_extra_state(self, state: Any) -> None:
        """Read the rows that a `state_dict` refers to, unless they are here already.

        Raises:
            CheckpointError: they are missing or damaged, or the folder has other rows now.
            ConfigError: the tables differ.
        """
        reference = Reference.of(state)
        if reference.id and (reference.id, reference.steps) == (self._saved.id, self.steps):
            return
        self._read(reference_to(reference.url, self._tables, reference))

    def _read(self, saved: Reference) -> None:
        """Replace all rows with saved ones; if they cannot be read, the store is as a new one."""
        self._forget()
        self.exchange.flush()
        self._saved, self.steps = Reference(), 0
        read_rows(self.exchange, saved.url)
        self._saved, self.steps = saved, saved.steps

    def close(self) -> None:
        """Release the store and its thread. Closing twice is fine."""
        self._forget()
        self.exchange.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ConfigError(
            "an EmbeddingCollection cannot be copied or pickled",
            why="its rows are in a store",
            fix="save(folder) and state_dict() in one program, load_state_dict() in another",
        )

    def extra_repr(self) -> str:
        """Return the features and their optimizer, for `repr`."""
        features = ", ".join(f"{name}: {each.dim}" for name, each in self.schema.categorical.items())
        return f"{features}, {self.optimizer}"


def _described(table: Table) -> dict[str, Any]:
    """Return the settings of a table that its saved rows depend on, as plain data."""
    optimizer = None if table.frozen or table.optimizer is None else table.optimizer.to_dict()
    return {"dim": table.dim, "optimizer": optimizer and optimizer["name"], "dtype": table.dtype}


def _check_alone() -> None:
    """Raise `ConfigError` in one of several processes, whose rows would differ."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigError(
            f"an EmbeddingCollection trains in one process, here are {dist.get_world_size()}",
            why="each process would train rows of its own",
            fix="train with satrap.Trainer and WorkerContext.from_environment()",
        )
