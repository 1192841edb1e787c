"""Host types: memory, cores, network, GPUs and price."""

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
    """A host type.

    Args:
        name: for example "gcp/m3-ultramem-128".
        role: "shards" (for rows), "workers" (for the network) or "cpu" (for loaders, embedding workers).
        memory: GiB.
        cores: hardware threads.
        network: Gbit/s in each direction at the same time.
        price: $/h.
        gpus: number of GPUs, default 0.
        tflops: peak TFLOP/s of one GPU in the precision of training; default 0.
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
        """Memory in bytes."""
        return self.memory * 2**30

    @property
    def bytes_per_second(self) -> float:
        """Bytes/s of the network."""
        return self.network * 1e9 / 8


@dataclass(frozen=True, slots=True)
class Catalog:
    """Host types, from a file.

    Args:
        machines: name -> host type.
        origin: the file and its date, as text.
    """

    machines: dict[str, Machine]
    origin: str

    def of(self, role: Role) -> list[Machine]:
        """Return the host types for a role."""
        return [machine for machine in self.machines.values() if machine.role == role]


def read(path: str | None = None) -> Catalog:
    """Read host types from a TOML file; default: the hosts of three clouds, included in satrap.

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
        ConfigError: the file cannot be read, or a key is missing, unknown or invalid.
    """
    source = files("satrap.tools.plan.cluster") / "machines.toml" if path is None else Path(path)
    where = path or "machines.toml of satrap"
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("the machines file cannot be read", where=where, why=str(error)) from error
    machines = content.get("machines")
    if not isinstance(machines, dict) or not machines:
        raise ConfigError("the machines file is empty", where=where, fix='add a section [machines."NAME"]')
    machine_types = {name: _machine(name, values, where) for name, values in machines.items()}
    return Catalog(machine_types, f"{where}, {content.get('date', 'no date')}")


def _machine(name: str, values: Any, where: str) -> Machine:
    allowed = {field.name for field in fields(Machine)} - {"name"}
    settings = values if isinstance(values, dict) else {}
    wrong = sorted((allowed - {"gpus", "tflops"} - settings.keys()) | (settings.keys() - allowed))
    for key in sorted(allowed & settings.keys()):
        value = settings[key]
        least = 0.0 if key in ("price", "gpus", "tflops") else 1e-9
        fits = value in get_args(Role) if key == "role" else _is_number(value) and least <= value < 1e9
        wrong += [] if fits else [key]
    if wrong:
        raise ConfigError(
            f"machine {name!r}: {wrong[0]!r} is missing, unknown or invalid",
            where=where,
            fix=f"set role to one of {', '.join(get_args(Role))}, and memory, cores, network and price to "
            "numbers; gpus and tflops are for hosts with GPUs",
        )
    return Machine(name, **settings)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
