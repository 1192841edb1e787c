"""What the system grants: real limits on real processes; other systems' descriptions are folders here."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from satrap.runtime.machine_limits import address_bytes, machine_bytes, usable_cores
from tests.support.containers import limited, own_group

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
PRELUDE = """
import resource, sys
import numpy as np
from satrap import Table
from satrap.errors import StoreError
from satrap.optim import SGD, RowWiseAdagrad
from satrap.store import Shard, floats

def limit(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    top = resource.RLIM_INFINITY if more is None else used + more
    resource.setrlimit(resource.RLIMIT_AS, (top, resource.RLIM_INFINITY))
"""

BUFFERS = """
for share in range(1, 40):
    limit(share * (10 << 20))
    try:
        array = floats(256 << 10, 100)
        array[:] = 1
        array[:] += array
        assert array.min() == array.max() == 2
        del array
    except StoreError as error:
        assert "embedding.memory" in error.fix
        refused = share
    limit(None)
print(refused)
"""

STORES = """
TABLES = [Table("a", dim=16), Table("b", dim=16)]
untouched = Shard(TABLES, optimizer=RowWiseAdagrad(lr=0.5), seed=1, threads=1)
splits, gradients = np.array([0, 2500, 5000]), np.full((5000, 16), 2, np.float32)
requests = np.arange(200 * 5000, dtype=np.uint64).reshape(-1, 5000)
rows, first = np.empty_like(gradients), np.empty_like(gradients)

def fill():
    "Fill a store of 64 MiB with rows, train each once, and check each; return how many there are."
    shard = Shard(TABLES, optimizer=RowWiseAdagrad(lr=0.5), seed=1, threads=1, memory=64 << 20)
    pieces = shard.groups[0].directory.room // 5000
    for ids in requests[:pieces]:
        shard.lookup_group(0, ids, splits, rows)
        shard.update_group(0, ids, splits, gradients)
    for ids in requests[:pieces]:
        untouched.peek_group(0, ids, splits, first)
        assert shard.peek_group(0, ids, splits, rows)[1].all()
        np.testing.assert_allclose(rows, first - 0.5, atol=1e-5)
    assert shard.statistics().rows == 5000 * pieces
    return pieces

whole, refused, served = fill(), 0, 0
for size in (40, 44, 52, 60, 64, 68, 72, 90, 110):
    limit(size << 20)
    try:
        assert fill() == whole
        served += 1
    except (StoreError, MemoryError):
        refused += 1
    limit(None)
print(refused, served)
"""

SMALLER = """
TABLES = [Table("a", dim=16), Table("b", dim=16)]
Shard(TABLES, optimizer=SGD(lr=1)).lookup("a", np.arange(9, dtype=np.uint64))
limit(1 << 30)
shard = Shard(TABLES, optimizer=SGD(lr=1), seed=1, threads=1)
room = shard.groups[0].directory.room
assert 1_000_000 < room < (1 << 30) // 64, room
shard.clear()
for i in range(0, room - 9, 50_000):
    shard.lookup("a", np.arange(i, i + 50_000, dtype=np.uint64))
    if shard.groups[0].directory.room < 50_000:
        break
try:
    shard.lookup("b", np.arange(100_000, dtype=np.uint64))
except StoreError as error:
    print("embedding.memory" in error.fix, error.what.startswith("no room for"))
limit(32 << 20)
try:
    Shard(TABLES, optimizer=SGD(lr=1))
except StoreError as error:
    print("embedding.memory" in error.fix, "address space" in error.what)
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.split()


@pytest.mark.cluster
def test_an_array_is_whole_or_refused_whatever_address_space_is_left():
    assert 5 < int(run(BUFFERS)[0]) < 20


@pytest.mark.cluster
def test_a_store_is_right_or_refused_whatever_address_space_is_left():
    refused, served = map(int, run(STORES))
    assert refused >= 2
    assert served >= 2


@pytest.mark.cluster
def test_a_store_without_a_budget_reserves_less_where_address_space_is_limited():
    assert run(SMALLER) == ["True"] * 4


def test_without_limits_there_is_none():
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
        assert address_bytes() is None


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_leave_what_it_does_not_use(kind):
    program = f"""
from satrap.runtime.machine_limits import address_bytes
limits = resource.getrlimit(resource.{kind})
resource.setrlimit(resource.{kind}, (8 << 30, limits[1]))
before = address_bytes()
memory = np.zeros(100 << 20, np.uint8)
print(before, before - address_bytes())
"""
    before, taken = map(int, run(program))
    assert 0 < before < 8 << 30
    assert 100 << 20 <= taken < 110 << 20


def describe(folder, *, overcommit="0", group="", mounts=""):
    """Write what a system would say of a process to a folder in place of /proc."""
    files = {
        "self/statm": "1000 500 100 10 0 300 0\n",
        "self/cgroup": group,
        "self/mountinfo": "22 1 0:20 / /proc rw - proc proc rw\n" + mounts,
        "sys/vm/overcommit_memory": overcommit + "\n",
        "meminfo": "MemTotal: 1 kB\nCommitLimit:    5000000 kB\nCommitted_AS:   2000000 kB\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_strict_overcommit_limits_the_address_space(tmp_path):
    assert address_bytes(describe(tmp_path / "lax", overcommit="1")) is None
    assert address_bytes(describe(tmp_path / "strict", overcommit="2")) == 3_000_000 * 1024


def limits(root, name, **values):
    """Make a tree of cgroups below `root` with these limits; "" is the root itself."""
    for path, value in values.items():
        folder = root / path.replace("_", "/").strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")


LEAST = 4096


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a_b": LEAST}, LEAST),
        ({"a_b": "max", "a": LEAST}, LEAST),
        ({"a_b": 3 * LEAST, "a": 2 * LEAST}, 2 * LEAST),
        ({"a_b": 2 * LEAST, "a": 3 * LEAST, "c": LEAST}, 2 * LEAST),
        ({"a_b": "max", "a": "max"}, PHYSICAL),
        ({"a_b": 2**60}, PHYSICAL),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_limit_of_nested_containers_counts(tmp_path, values, expected, version):
    root = tmp_path / "fs cgroup"  # blanks are written as octal numbers
    if version == 1:
        kind, name, group = "cgroup", "memory.limit_in_bytes", "5:cpu,memory:/a/b\n4:pids:/c\n0::/c\n"
        values = {path: 9223372036854771712 if value == "max" else value for path, value in values.items()}
    else:
        kind, name, group = "cgroup2", "memory.max", "0::/a/b\n"
    options = "rw,cpu,memory" if version == 1 else "rw"
    mount = f"31 22 0:27 / {str(root).replace(' ', chr(92) + '040')} rw shared:9 - {kind} {kind} {options}\n"
    limits(root, name, **values)
    proc = describe(tmp_path / "proc", group=group, mounts=mount)
    assert machine_bytes(proc) == expected


@pytest.mark.parametrize(
    ("root", "group"),
    [("/", "/"), ("/docker/1f", "/docker/1f"), ("/", "/../../other"), ("/docker/1f", "/elsewhere")],
)
def test_a_container_that_sees_its_own_group_as_the_root(tmp_path, root, group):
    mount = f"31 22 0:27 {root} {tmp_path}/fs ro - cgroup2 cgroup ro\n"
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/memory.max").write_text(f"{LEAST}\n")
    assert machine_bytes(describe(tmp_path / "proc", group=f"0::{group}\n", mounts=mount)) == LEAST


def test_a_system_without_proc_has_no_limits(tmp_path):
    assert machine_bytes(tmp_path) == PHYSICAL
    assert address_bytes(tmp_path) is None


@pytest.mark.cluster
def test_a_real_container_counts():
    """A process in a memory cgroup of 800 MiB inside one of 700 MiB has 700 MiB."""
    outer = own_group() / f"satrap-{os.getpid()}"
    with limited(700 << 20, outer), limited(800 << 20, outer / "inner") as inner:
        program = f"""
open("{inner}/cgroup.procs", "w").write("0")
from satrap.runtime.machine_limits import machine_bytes
shard = Shard([Table("a", dim=16)], optimizer=SGD(lr=1))
print(machine_bytes(), shard.groups[0].directory.limit)
"""
        found, rows = map(int, run(program))
        assert found == 700 << 20
        assert rows == found // 64 - 16


def test_cores_are_those_of_the_affinity_or_of_the_tightest_quota_around(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == allowed
    (tmp_path / "self").mkdir()
    mount = tmp_path / "cgroup"
    (mount / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "self" / "mountinfo").write_text(f"1 1 0:1 / {mount} rw - cgroup2 cgroup2 rw\n")
    (mount / "outer" / "inner" / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == allowed
    (mount / "outer" / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 0.5
    (tmp_path / "self" / "cgroup").write_text("3:cpu,cpuacct:/outer\n")
    (tmp_path / "self" / "mountinfo").write_text(f"1 1 0:1 / {mount} rw - cgroup cgroup rw,cpu,cpuacct\n")
    (mount / "outer" / "cpu.cfs_period_us").write_text("100000\n")
    (mount / "outer" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == allowed
    (mount / "outer" / "cpu.cfs_quota_us").write_text("25000\n")
    assert usable_cores(tmp_path) == 0.25
