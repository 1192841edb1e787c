"""Real processes whose folders for machine code cannot be used, or hold damaged files."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

import satrap
from satrap.runtime.numba_cache import COMPILING, SHIPPED, compiling
from tests.disks import small_disk

PROGRAM = """
import sys
import numpy as np
import satrap
from satrap.batch import Jagged
from satrap.data.batch_rows import take_jagged
from satrap.store.hashes import bucket_of
print(satrap.__file__.startswith(sys.argv[1]))
taken = take_jagged(Jagged(np.arange(9, dtype=np.uint64), np.array([0, 2, 5, 9])), np.array([2, 0]))
print(bucket_of("a", np.arange(3, dtype=np.uint64)).tolist(), taken.values.tolist())
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package beside whose files nothing can be written, also by root."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(
        Path(satrap.__file__).parent, folder / "satrap", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in [folder / "satrap", *(folder / "satrap").rglob("*")]:
        if path.is_dir():
            (path / "__pycache__").write_text("in the way")
    return folder


def start(package: Path, **environment: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(package)],
        env={**kept, "PYTHONPATH": str(package), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(process: subprocess.Popen[str], *, warns: bool, compiles: bool | None = None) -> str:
    """Check what a process prints; None: whether it compiles depends on the others."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.startswith("True\n[1633, 1270, 4008] [5, 6, 7, 8, 0, 1]"), out
    assert compiles is None or err.count("compiling for this machine") == compiles, err
    assert err.count("compiled code cannot be cached") == warns, err
    assert ("NUMBA_CACHE_DIR" in err) == warns
    return out


@pytest.mark.cluster
@pytest.mark.slow
def test_without_a_folder_that_can_be_written_it_runs_and_says_so_once(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    homes = [str(tmp_path / "file"), "/proc/none"]
    outs = {check(start(package, HOME=home), warns=True) for home in homes}
    file = str(tmp_path / "file")
    outs.add(check(start(package, HOME=str(tmp_path / "home"), NUMBA_CACHE_DIR=file), warns=True))
    outs.add(check(start(package, HOME=str(tmp_path / "home")), warns=False))  # made by the first process
    assert len(outs) == 1


@pytest.mark.cluster
def test_processes_that_compile_at_once_and_damaged_files(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    both = [start(package, NUMBA_CACHE_DIR=str(folder)) for _ in range(2)]
    first = {check(process, warns=False) for process in both}  # the later one may find what it needs
    for ending, damage in (("nbi", b"no index"), ("nbc", b"")):
        files = list(folder.rglob(f"*.{ending}"))
        assert len(files) >= 2
        for path in files:
            path.write_bytes(damage)
        assert check(start(package, NUMBA_CACHE_DIR=str(folder)), warns=True, compiles=True) in first
        again = check(start(package, NUMBA_CACHE_DIR=str(folder)), warns=False, compiles=False)
        assert again in first  # whole again


@pytest.mark.cluster
def test_a_full_disk_is_said_once(package: Path, tmp_path: Path) -> None:
    """A file system of 16 KiB: the folders can be made, the machine code does not fit."""
    with small_disk(tmp_path / "small", "16k") as small:
        check(start(package, NUMBA_CACHE_DIR=str(small)), warns=True)


def test_compiling_is_announced_once_and_not_when_the_code_is_there(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "from satrap.runtime.numba_cache import announce, compiled\n"
        "@compiled(folder='cache')\n"
        "def twice(x):\n    return 2 * x\n"
        "@compiled(folder='cache')\n"
        "def thrice(x):\n    return 3 * x\n"
        "announce(lambda: print('compiling'))\n"
        "print(twice(1), thrice(1), twice(2))\n"
    )
    run = [sys.executable, "-m", "twice"]
    outs = [subprocess.run(run, cwd=tmp_path, capture_output=True, text=True).stdout for _ in range(2)]
    assert outs == ["compiling\n2 3 4\n", "2 3 4\n"]


@pytest.mark.cluster
def test_who_announces_nothing_is_told_once_by_the_log_of_satrap(tmp_path: Path) -> None:
    """Without a word for it, as a program in Python has none; logging sends it to standard error."""
    (tmp_path / "twice.py").write_text(
        "import logging, sys\n"
        "from satrap.runtime.numba_cache import compiled\n"
        "if len(sys.argv) > 2:\n    logging.getLogger('satrap').setLevel(logging.ERROR)\n"
        "@compiled(folder=sys.argv[1])\n"
        "def twice(x):\n    return 2 * x\n"
        "print(twice(1), twice(1.5))\n"
    )

    def told(*arguments: str) -> str:
        run = [sys.executable, "-m", "twice", *arguments]
        ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
        assert ended.stdout == "2 3.0\n"
        return ended.stderr

    assert told("cold").splitlines() == [COMPILING]
    assert told("cold") == ""
    assert told("other", "quiet") == ""


@pytest.mark.cluster
def test_an_edit_of_a_helper_is_compiled_into_its_callers_whatever_the_times_of_files_say(
    tmp_path: Path,
) -> None:
    """As an upgrade does whose files all have the time of the epoch, with a helper of the same length."""
    helper, caller = tmp_path / "helper.py", tmp_path / "caller.py"
    first = "from satrap.runtime.numba_cache import compiled\n@compiled()\ndef add(x):\n    return x + 1\n"
    caller.write_text(
        "from helper import add\n"
        "from satrap.runtime.numba_cache import compiled\n"
        "@compiled()\ndef twice(x):\n    return 2 * add(x)\n"
        "print(twice(1), sum(twice.stats.cache_hits.values()))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(satrap.__file__).parents[1]),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    outs = list[str]()
    for source in (first, first, first.replace("1", "5")):
        helper.write_text(source)
        for path in (helper, caller):
            os.utime(path, (0, 0))
        run = [sys.executable, "caller.py"]
        outs.append(subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout)
    assert outs == ["4 0\n", "4 1\n", "12 0\n"]


@pytest.mark.cluster
def test_machine_code_that_an_image_ships_is_used_with_another_folder(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "from satrap.runtime.numba_cache import compiled\n"
        "@compiled()\n"
        "def twice(x):\n    return 2 * x\n"
        "print(twice(1), sum(twice.stats.cache_hits.values()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(satrap.__file__).parents[1])}
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "own"), SHIPPED: str(tmp_path / "shipped")}
    outs = [
        subprocess.run(
            [sys.executable, "twice.py"],
            cwd=tmp_path,
            env=environment | given,
            capture_output=True,
            text=True,
        ).stdout
        for given in ({"NUMBA_CACHE_DIR": own[SHIPPED]}, own)
    ]
    assert outs == ["2 0\n", "2 1\n"]


def test_one_sees_that_a_function_is_being_compiled() -> None:
    assert compiling() is None
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(numba.njit(lambda x: x.sum()), np.arange(3.0))  # takes a part of a second
        seen = [compiling() for _ in iter(lambda: time.sleep(0.001) or done.done(), True)]
    assert compiling() is None
    told = [number for number in seen if number is not None]
    assert told == sorted(told)
    assert len(set(told)) > 1
