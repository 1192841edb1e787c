from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from satrap.dense.comm.network_interface import interface_of
from tools_dev.mutants.__main__ import isolation


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


LINKS = """
ip link add near type veth peer name far
ip address add 10.9.8.7/24 dev near
ip address add 10.9.9.7/24 dev far
"""
CHECK = """
import subprocess
from satrap.dense.comm.network_interface import interface_of
for line in subprocess.check_output(["ip", "-o", "-4", "address"], text=True).splitlines():
    _, name, _, address, *_ = line.split()
    found = interface_of(address.partition("/")[0])
    assert found == name, (found, name, address)
    print(name)
"""


def test_each_interface_is_found_by_its_own_address() -> None:
    if shutil.which("ip") is None:
        pytest.skip("only ip(8) can tell the addresses of interfaces")
    own = isolation()  # two more interfaces where they disturb nothing; else those that are there
    script = f'set -e; {LINKS if own else ""} exec "$0" -c "$1"'
    checked = subprocess.check_output([*own, "sh", "-c", script, sys.executable, CHECK], text=True).split()
    assert checked == ["lo", "far", "near"] if own else checked
