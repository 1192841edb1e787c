"""The metrics endpoints of a run, as a file that Prometheus watches."""

from __future__ import annotations

import json
from collections.abc import Iterable

from satrap.launch.folder.run_folder import RunFolder, write_whole
from satrap.runtime.events import Event, MetricsServed


class Targets:
    """Maintains `targets.json` in the run folder during a run: a list for Prometheus' `file_sd_configs`.

    Every process with an endpoint is a target with the labels `run` (the folder's name), `role`, `number`,
    and `instance` (role and number). A restarted process, even at another address, replaces its predecessor,
    so that its series continue. A dead process stays and shows as down. A process that has left for good is
    removed. Without endpoints there is no file.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._file, self._run = folder.targets_file, folder.path.absolute().name
        self._addresses: dict[str, str] = {}
        self.close()  # removes the file of a killed run

    def heard(self, name: str, event: Event) -> None:
        """Receive an event of a process such as "shard 0"."""
        if isinstance(event, MetricsServed) and self._addresses.get(name) != event.address:
            self._addresses[name] = event.address
            self._write()

    def keep_workers(self, count: int) -> None:
        """Remove all workers but the first `count`, because they have ended for good."""
        workers = {f"worker {number}" for number in range(count)}
        self.remove([name for name in self._addresses if name.startswith("worker ") and name not in workers])

    def remove(self, gone: Iterable[str]) -> None:
        """Remove processes that have ended for good."""
        removed = [name for name in gone if self._addresses.pop(name, None) is not None]
        if removed:
            self._write()

    def _write(self) -> None:
        write_whole(self._file, json.dumps([self._target(name) for name in self._addresses], indent=1) + "\n")

    def _target(self, name: str) -> dict[str, object]:
        role, _, number = name.rpartition(" ")
        role = role.replace(" ", "-")
        labels = {"run": self._run, "role": role, "number": number, "instance": f"{role}-{number}"}
        return {"targets": [self._addresses[name]], "labels": labels}

    def close(self) -> None:
        """Remove the file, because an ended run is not a target."""
        self._file.unlink(missing_ok=True)
