"""Machines of a cluster, as network namespaces of this one, with a bandwidth and a delay between them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cli.command import SATRAP

WORKERS, ROWS = 0, 1
"""Machines."""

_NUMBERS = itertools.count()


class Machines:
    """Network namespaces on a bridge; needs root. Without a rate there are none, and all is loopback.

    Args:
        count: how many.
        rate: of what each sends, in the words of `tc`, for example "1gbit"; "": no namespaces.
        delay: seconds that each frame takes; more than 0 for two machines only, which a relay connects.

    Attributes:
        addresses: of each.
        master: address of the first.
    """

    def __init__(self, count: int, rate: str, delay: float = 0.0) -> None:
        assert not delay or (count == 2 and rate)
        # Names of its own: those of machines that are gone are free only a little later.
        self._bridge = f"s{os.getpid():x}x{next(_NUMBERS):x}"
        self._names = [f"{self._bridge}-{i}" for i in range(count)]
        self._count, self._rate = count if rate else 0, rate
        self.addresses = [f"10.213.0.{i + 1}" if rate else "127.0.0.1" for i in range(count)]
        self.master = self.addresses[0]
        self._delay = delay
        self._relay: subprocess.Popen[str] | None = None
        # Names the place of the cables' other ends: this machine, or one of its own for the relay.
        self._middle = ["ip", "-n", f"{self._bridge}-m"] if delay else ["ip"]

    def __enter__(self) -> Machines:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        if not self._count:
            return
        if self._delay:
            _do(f"ip netns add {self._bridge}-m")
        else:
            _do(f"ip link add {self._bridge} type bridge")
            _do(f"ip link set {self._bridge} up")
        for i, name in enumerate(self._names):
            outside = f"{name}o"
            _do(f"ip netns add {name}")
            self._cable(f"add {outside} type veth peer name eth0 netns {name}")
            self._cable(f"set {outside} up" if self._delay else f"set {outside} master {self._bridge} up")
            _do(f"ip -n {name} addr add {self.addresses[i]}/24 dev eth0")
            _do(f"ip -n {name} link set eth0 up")
            _do(f"ip -n {name} link set lo up")
            limit = f"tbf rate {self._rate} burst 1m latency 100ms"
            _do(f"ip netns exec {name} tc qdisc add dev eth0 root {limit}")

        if self._delay:
            self._connect()

    def _cable(self, what: str) -> None:
        subprocess.run([*self._middle, "link", *what.split()], check=True)

    def _connect(self) -> None:
        ends = [f"{name}o" for name in self._names]
        script = str(Path(__file__).with_name("relay.py"))
        command = ["ip", "netns", "exec", f"{self._bridge}-m", sys.executable, script, *ends]
        self._relay = subprocess.Popen([*command, str(self._delay)], stdout=subprocess.PIPE, text=True)
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline() == "ready\n"

    def command(self, machine: int) -> list[str]:
        """Return what a command on one of them begins with."""
        return ["ip", "netns", "exec", self._names[machine]] if self._count else []

    def cut(self, machine: int) -> None:
        """Pull the cable of one of them."""
        self._cable(f"set {self._names[machine]}o down")

    def mend(self, machine: int) -> None:
        """Plug it in again."""
        self._cable(f"set {self._names[machine]}o up")

    def __exit__(self, *exception: object) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        for name in [*self._names[: self._count], *([f"{self._bridge}-m"] if self._delay else [])]:
            subprocess.run(["ip", "netns", "del", name], check=False)
        if self._count and not self._delay:
            subprocess.run(["ip", "link", "del", self._bridge], check=False)


def _do(command: str) -> None:
    subprocess.run(command.split(), check=True)


@contextmanager
def shards(machines: Machines, key: Path, count: int = 2) -> Iterator[list[str]]:
    """Shards on the second machine; yields their addresses."""
    with ExitStack() as stack:
        addresses = []
        for number in range(count):
            listen = ["shard", "--listen", f"{machines.addresses[ROWS]}:{7000 + number}", "--key", str(key)]
            shard = stack.enter_context(
                subprocess.Popen(
                    [*machines.command(ROWS), str(SATRAP), *listen], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(shard.terminate)
            assert shard.stdout is not None
            addresses.append(shard.stdout.readline().split()[4])
        yield addresses
