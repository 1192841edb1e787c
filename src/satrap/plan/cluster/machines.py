"""Kinds of hosts: memory, cores, network, GPUs and price."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from satrap.errors import ConfigError

Role = Literal["shards", "workers", "cpu"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of host.

    Args:
        name: for example "gcp/m3-ultramem-128".
        role: what it is for: "shards" (rows), "workers" (the network) or "cpu" (loaders, embedding workers).
        memory: GiB.
        cores: hardware threads.
        network: Gbit/s that it sends, and at the same time receives.
        price: $/h.
        gpus: how many, default 0.
        tflops: of one GPU at its best, in the precision of the training; default 0.
    """

    name: str
    role: Role
    memory: float
    cores: int
    network: float
    price: float
    gpus: int = 0
    tflops: float = 0.0

    @property
    def bytes(self) -> float:
        """Bytes of memory."""
        return self.memory * 2**30

    @property
    def bytes_per_second(self) -> float:
        """Bytes/s of the network."""
        return self.network * 1e9 / 8


@dataclass(frozen=True, slots=True)
class Catalog:
    """Kinds of hosts, from a file.

    Args:
        machines: name -> kind.
        origin: the file and its date, in words.
    """

    machines: dict[str, Machine]
    origin: str

    def of(self, role: Role) -> list[Machine]:
        """Return the kinds for a role."""
        return [one for one in self.machines.values() if one.role == role]


def read(path: str | None = None) -> Catalog:
    """Read kinds of hosts from a TOML file; default those of three clouds that come with satrap.

    ```toml
    date = 2026-11-01
    [machines."our/big-memory"]
    role = "shards"     # or "workers", "cpu"
    memory = 4096       # GiB
    cores = 128
    network = 100       # Gbit/s
    price = 20.0        # $/h
    ```

    Raises:
        ConfigError: the file cannot be read, or a key is missing, unknown or impossible.
    """
    source = files("satrap.plan.cluster") / "machines.toml" if path is None else Path(path)
    where = path or "machines.toml of satrap"
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("the file of machines cannot be read", where=where, why=str(error)) from error
    machines = content.get("machines")
    if not isinstance(machines, dict) or not machines:
        raise ConfigError("the file has no machines", where=where, fix='begin one with [machines."its name"]')
    found = {name: _machine(name, values, where) for name, values in machines.items()}
    return Catalog(found, f"{where}, {content.get('date', 'no date')}")


def _machine(name: str, values: Any, where: str) -> Machine:
    known = {field.name for field in fields(Machine)} - {"name"}
    given = values if isinstance(values, dict) else {}
    wrong = sorted((known - {"gpus", "tflops"} - given.keys()) | (given.keys() - known))
    for key in sorted(known & given.keys()):
        value = given[key]
        least = 0.0 if key in ("price", "gpus", "tflops") else 1e-9
        fits = value in get_args(Role) if key == "role" else _is_number(value) and least <= value < 1e9
        wrong += [] if fits else [key]
    if wrong:
        raise ConfigError(
            f"machine {name!r}: {wrong[0]!r} is missing, unknown or impossible",
            where=where,
            fix=f"role is one of {', '.join(get_args(Role))}; memory, cores, network, price are numbers; "
            "gpus and tflops belong to hosts with GPUs",
        )
    return Machine(name, **given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
