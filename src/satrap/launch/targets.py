"""Where the metrics of a run are, as a file that Prometheus follows."""

from __future__ import annotations

import json
from collections.abc import Iterable

from satrap.events import Event, MetricsServed
from satrap.launch.folder import RunFolder, write_whole


class Targets:
    """Keeps `targets.json` of a run folder while the run lives: a list for Prometheus' `file_sd_configs`.

    Every process with an endpoint is a target with the labels `run`, the folder's name; `role` and `number`;
    and `instance`, both together. A process that is started again, maybe at another address, takes the place
    of the former one, so that its series go on. One that has died stays, and shows as down; one that has
    left for good is removed. Without endpoints there is no file.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._file, self._run = folder.targets_file, folder.path.absolute().name
        self._addresses: dict[str, str] = {}
        self.close()  # removes what a killed run has left

    def heard(self, name: str, event: Event) -> None:
        """Take an event of a process such as "shard 0"."""
        if isinstance(event, MetricsServed) and self._addresses.get(name) != event.address:
            self._addresses[name] = event.address
            self._write()

    def keep_workers(self, count: int) -> None:
        """Remove the workers beyond the first `count`: they have ended for good."""
        kept = {f"worker {number}" for number in range(count)}
        self.remove([name for name in self._addresses if name.startswith("worker ") and name not in kept])

    def remove(self, gone: Iterable[str]) -> None:
        """Remove processes that have ended for good."""
        known = [name for name in gone if self._addresses.pop(name, None) is not None]
        if known:
            self._write()

    def _write(self) -> None:
        write_whole(self._file, json.dumps([self._target(one) for one in self._addresses], indent=1) + "\n")

    def _target(self, name: str) -> dict[str, object]:
        role, _, number = name.rpartition(" ")
        role = role.replace(" ", "-")
        labels = {"run": self._run, "role": role, "number": number, "instance": f"{role}-{number}"}
        return {"targets": [self._addresses[name]], "labels": labels}

    def close(self) -> None:
        """Remove the file: a run that has ended is no target."""
        self._file.unlink(missing_ok=True)
