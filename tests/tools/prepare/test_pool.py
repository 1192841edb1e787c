import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from satrap.errors import ConfigError, DataError
from satrap.tools.prepare.pool import results


def squares(offset):
    def work(task):
        if task == "wrong":
            raise ConfigError("a wrong task", where="here")
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        yield from ((os.getpid(), offset), (os.getpid(), offset + task * task))

    return work


def test_one_process_is_this_one():
    assert list(results(squares, (1,), iter([2, 3]), 1)) == [(os.getpid(), value) for value in (1, 5, 1, 10)]


@pytest.mark.cluster
def test_several_processes_do_all_tasks():
    found = list(results(squares, (1,), iter(range(100)), 3))
    assert os.getpid() not in {pid for pid, _ in found}
    assert sorted(value for _, value in found) == sorted([1] * 100 + [1 + i * i for i in range(100)])


@pytest.mark.cluster
def test_errors_of_a_process_reach_the_caller():
    with pytest.raises(ConfigError, match="a wrong task"):
        list(results(squares, (1,), iter([1, "wrong", 2]), 2))
    with pytest.raises(DataError, match="ended with code -9") as caught:
        list(results(squares, (1,), iter(["die"]), 2))
    assert "--processes" in caught.value.fix


ENDLESS = """
import time
from pathlib import Path
from satrap.tools.prepare.pool import results

def make(folder):
    def work(task):
        import os
        (Path(folder) / str(os.getpid())).touch()
        time.sleep(600)
        yield 1
    return work

if __name__ == "__main__":
    import sys
    list(results(make, (sys.argv[1],), iter([1, 2]), 2))
"""


@pytest.mark.cluster
def test_processes_end_with_a_killed_parent(tmp_path: Path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "pids").mkdir()
    parent = subprocess.Popen([sys.executable, str(tmp_path / "endless.py"), str(tmp_path / "pids")])
    try:
        wait_for(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
