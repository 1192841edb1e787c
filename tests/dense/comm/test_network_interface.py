from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from satrap.dense.comm.network_interface import interface_of


def test_an_address_has_an_interface() -> None:
    loopback = interface_of("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert interface_of("localhost") == loopback
    assert interface_of("127.0.1.1") == loopback
    assert interface_of("192.0.2.1") is None  # an address for documentation
    assert interface_of("no.such.host.invalid") is None


def test_the_address_towards_other_machines_is_of_the_interface_of_the_route() -> None:
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    defaults = [name for name, target, *_ in routes if int(target, 16) == 0]
    if not defaults:
        pytest.skip("this machine has no default route")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        any_socket.connect(("192.0.2.1", 9))
        assert interface_of(any_socket.getsockname()[0]) in defaults


def test_each_interface_is_found_by_its_own_address() -> None:
    links = "ip link add near type veth peer name far && ip addr add 10.9.8.7/24 dev near"
    links += " && ip addr add 10.9.9.7/24 dev far && ip link set near up && ip link set far up"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "sh", "-c", links]).returncode:
        pytest.skip("no interfaces can be made here")
    program = "from satrap.dense.comm.network_interface import interface_of as find\n"
    program += "print(find('10.9.9.7'), find('10.9.8.7'))"
    found = subprocess.check_output(
        ["unshare", "-rn", "sh", "-c", f'{links} && exec "$0" -c "$1"', sys.executable, program], text=True
    )
    assert found.split() == ["far", "near"]
