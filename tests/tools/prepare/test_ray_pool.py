"""Parts that the nodes of a Ray cluster write: the bytes of one process, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from satrap.config import load
from satrap.errors import ConfigError, DataError
from satrap.tools.prepare import prepare
from satrap.tools.prepare.manifest import View
from satrap.tools.prepare.parts import PartRun
from satrap.tools.prepare.prepare import node_worker
from satrap.tools.prepare.ray_pool import DEATHS, results
from tests.cli.command import SATRAP
from tests.cluster.runs import alive, eventually
from tests.launch.launchers.ray_nodes import Nodes
from tests.tools.prepare.raw_rows import contents, make

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
ROWS = 600_000
"""About 11 MB of text, so ten parts: none is smaller than a block of text."""

FILES = ["--files", "12"]


def squares(offset: int) -> Callable[[Any], Iterator[tuple[int, int, int]]]:
    """Return work on (n, place, ...): n, n + 1, ... of squares; the first who comes to a place dies."""

    def work(task: Any) -> Iterator[tuple[int, int, int]]:
        if task == "wrong":
            raise ConfigError("a wrong task", where="here")
        if task == "gone":
            raise FileNotFoundError(2, "No such file or directory", "x")
        for number, place in enumerate(task[1:], task[0]):
            if place == "always" or (place and not Path(place).exists()):
                if place != "always":
                    Path(place).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield os.getpid(), number, offset + number**2

    return work


def left(task: Any, result: tuple[int, int, int]) -> Any:
    assert result[1] == task[0]
    return (task[0] + 1, *task[2:]) if len(task) > 2 else None


def done(
    tasks: list[Any], said: list[str] | None = None, workers: int | None = 2
) -> list[tuple[int, int, int]]:
    notice: Callable[[str], object] = [].append if said is None else said.append
    return list(results(squares, (1,), iter(tasks), left, address="auto", workers=workers, notice=notice))


@pytest.mark.parametrize("workers", [2, None])
def test_actors_do_all_tasks(nodes: Nodes, workers: int | None) -> None:
    found = done([(10 * i, "", "", "") for i in range(3)], workers=workers)
    numbers = [10 * i + j for i in range(3) for j in range(3)]
    assert sorted((number, value) for _, number, value in found) == [(n, 1 + n * n) for n in numbers]
    assert len({pid for pid, _, _ in found} - {os.getpid()}) in (1, 2, 3)
    assert nodes.free() == 8


def test_results_before_a_death_stay_and_the_rest_is_done_again(nodes: Nodes, tmp_path: Path) -> None:
    said: list[str] = []
    found = done([(2, "", str(tmp_path / "a"), ""), (7, str(tmp_path / "b"))], said)
    assert sorted(number for _, number, _ in found) == [2, 3, 4, 7]
    assert len(said) == 2
    assert all("a Ray worker died, and its part is written again" in line for line in said)


def test_errors_say_what_happened_on_which_node(nodes: Nodes) -> None:
    here = nodes.ray.util.get_node_ip_address()
    with pytest.raises(DataError, match=f"{DEATHS} Ray workers died") as caught:
        done([(1, "always")])
    assert "lack of memory" in caught.value.fix
    with pytest.raises(ConfigError, match="a wrong task") as wrong:
        done(["wrong"])
    assert wrong.value.where == f"here, on node {here}"
    with pytest.raises(DataError, match=r"a part cannot be written: .*'x'") as gone:
        done(["gone"])
    assert gone.value.where == f"node {here}"
    assert nodes.free() == 8


@pytest.mark.parametrize(
    ("folder", "facts", "gone", "what", "where"),
    [
        ("elsewhere", {}, False, "the node sees another output folder", "elsewhere"),
        (
            ".",
            {"size": 1, "version": "1", "rows": True},
            False,
            "the node sees another input file",
            "rows.csv",
        ),
        (".", {}, True, "the file does not exist", "rows.csv"),
    ],
)
def test_a_node_that_sees_other_files_is_named_with_the_file(
    nodes: Nodes, tmp_path: Path, folder: str, facts: dict[str, Any], gone: bool, what: str, where: str
) -> None:
    raw = make(tmp_path, 10)
    if gone:
        (tmp_path / "rows.csv").unlink()
    (tmp_path / "mark").touch()
    view = View((tmp_path / folder).absolute(), "mark", {}, {str(tmp_path / "rows.csv"): facts})
    tasks = iter([PartRun("train", 0, 0, None, None)])
    with pytest.raises((ConfigError, DataError)) as caught:
        list(
            results(node_worker, (raw.source, 1, view), tasks, left, address="auto", workers=1, notice=print)
        )
    assert what in caught.value.what
    assert f"{tmp_path / where}, on node {nodes.ray.util.get_node_ip_address()}" in caught.value.where


def recipe(folder: Path) -> Path:
    make(folder, ROWS)
    return folder / "raw.yaml"


def command(nodes: Nodes, folder: Path, output: Path) -> list[str]:
    words = ["prepare", folder / "raw.yaml", "--output", output, "--ray", nodes.cluster.address]
    return [*map(str, [SATRAP, *words]), "--processes", "2", *FILES]


def test_bytes_are_those_of_one_process_whoever_dies(nodes: Nodes, tmp_path: Path) -> None:
    """The command is killed once, a worker is killed, and so is a node."""
    raw = load(recipe(tmp_path))
    prepare(raw, tmp_path / "one", files=12)
    expected, out = contents(tmp_path / "one"), tmp_path / "out"
    assert len(expected) >= 8
    with subprocess.Popen(command(nodes, tmp_path, out), stderr=subprocess.PIPE, text=True) as started:
        assert eventually(lambda: started.poll() is not None or contents(out))
        left_alone = [pid for pid, _ in nodes.actors("Writer")]
        started.kill()
    assert left_alone
    assert eventually(lambda: not any(map(alive, left_alone)), 30)
    before = contents(out)
    assert before.items() < expected.items()

    extra, said, seen = nodes.add(1, far=1), list[str](), list[int]()

    def disturb(_: object) -> None:
        seen.append(len(contents(out)))
        if len(seen) == 1:
            os.kill(nodes.actors("Writer")[0][0], signal.SIGKILL)
        if len(seen) == 2:
            assert eventually(lambda: any(node is extra for _, node in nodes.actors("Writer")), 60)
            nodes.remove(extra)

    prepare(raw, out, files=12, processes=3, ray="auto", progress=disturb, notice=said.append)
    assert len(said) >= 1
    assert contents(out) == expected
    for name in ("manifest.json", "recipe.yaml"):
        assert (out / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert not list(out.glob("*.part"))
    assert nodes.free() == nodes.ray.cluster_resources()["CPU"]


def test_ctrl_c_ends_the_workers_and_the_same_command_goes_on(nodes: Nodes, tmp_path: Path) -> None:
    recipe(tmp_path)
    out = tmp_path / "out"
    with subprocess.Popen(command(nodes, tmp_path, out), stderr=subprocess.PIPE, text=True) as started:
        assert eventually(lambda: started.poll() is not None or contents(out))
        actors = [pid for pid, _ in nodes.actors("Writer")]
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (1, "interrupted; repeat the command to resume\n")
    assert actors
    assert eventually(lambda: not any(map(alive, actors)), 30)
    again = subprocess.run(command(nodes, tmp_path, out), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(f"{out}: 600,000 rows in {len(contents(out))} files, ")


def test_a_cluster_that_cannot_be_reached_is_an_error_at_once(tmp_path: Path) -> None:
    recipe(tmp_path)
    words = ["prepare", tmp_path / "raw.yaml", "--output", tmp_path / "out", "--ray", "127.0.0.1:9"]
    answer = subprocess.run([SATRAP, *words], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "cannot reach the Ray cluster at 127.0.0.1:9\n  where: --ray\n" in answer.stderr
