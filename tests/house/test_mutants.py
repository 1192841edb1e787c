"""The faults that `make mutants` plants: what it changes, what it leaves alone, and who should notice."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools_dev.mutants.__main__ import REVIEWED, ROOT, check_isolation, draw, equivalent, isolation
from tools_dev.mutants.operators import Mutant, mutants
from tools_dev.mutants.survey import READ_SOURCE, Choice, Survey

SOURCE = b'''"""Text."""
import os

Ids = int | None
LIMIT = 8


def take(a: int, b: int = 1, *, deep: bool = False) -> bool:
    """What 1 + 1 is."""
    for i in range(a):
        self.rows[i] = f"{a + b}"
    try:
        flush(a, b)
    except OSError as error:
        tell(error)
    if a < b and not deep:
        raise ValueError("a < " + str(a + 1))
    print(a + 1)
    return values[: a - 1] == b
'''


def test_the_mutants_of_a_file() -> None:
    found = {(m.line, m.operator, m.before, m.after) for m in mutants("src/satrap/x.py", SOURCE)}
    by_line = {line: {f[1:] for f in found if f[0] == line} for line in {f[0] for f in found}}
    assert sorted(by_line) == [5, 8, 10, 11, 13, 15, 16, 19]
    assert by_line[5] == {("constant", "8", "9"), ("constant", "8", "7")}
    assert by_line[8] == {("constant", "1", "2"), ("constant", "1", "0"), ("constant", "False", "True")}
    assert by_line[10] == {("bound", "a", "(a) + 1"), ("bound", "a", "(a) - 1")}
    assert by_line[11] == {("assignment dropped", 'self.rows[i] = f"{a + b}"', "pass")}
    assert by_line[13] == {
        ("call dropped", "flush(a, b)", "pass"),
        ("arguments swapped", "flush(a, b)", "flush(b, a)"),
    }
    assert ("handler passes it on", "tell(error)", "raise") in by_line[15]
    assert by_line[16] == {
        ("condition negated", "a < b and not deep", "(not (a < b and (not deep)))"),
        ("and/or", "a < b and not deep", "(a < b or not deep)"),
        ("comparison", "a < b", "(a <= b)"),
        ("negation dropped", "not deep", "(deep)"),
    }
    assert by_line[19] >= {
        ("return negated", "return values[: a - 1] == b", "return not (values[:a - 1] == b)"),
        ("arithmetic", "a - 1", "(a + 1)"),
    }


def test_arguments_are_swapped_where_their_order_matters() -> None:
    source = "a = max(b, c)\nd = np.minimum(b, c)\ne = builder.and_(b, c)\nf = take(b, c)\ng = s.max(b, c)\n"
    found = [(m.line, m.after) for m in mutants("src/satrap/x.py", source.encode())]
    assert found == [(4, "take(c, b)"), (5, "s.max(c, b)")]


def test_a_planted_mutant_is_another_program_and_changes_nothing_else() -> None:
    original = ast.dump(ast.parse(SOURCE))
    for mutant in mutants("src/satrap/x.py", SOURCE):
        planted = mutant.planted(SOURCE)
        assert ast.dump(ast.parse(planted)) != original, mutant
        assert planted.count(b"\n") == SOURCE.count(b"\n")
        assert mutant.differs(SOURCE)
        assert mutant.function == ("" if mutant.line == 5 else "take")


def test_a_seed_is_a_sample_of_different_lines() -> None:
    one, two, other = (draw({"src/satrap/x.py": SOURCE}, 6, seed) for seed in (1, 1, 2))
    assert one == two != other
    assert len({mutant.line for mutant in one}) == 6


def test_the_mirrored_tests_come_first_and_the_others_as_long_as_there_is_time(tmp_path: Path) -> None:
    files = {
        "src/satrap/store/x.py": "def take(): ...\ndef _compiled(): ...\nuse = by_width(_compiled)\n",
        "src/satrap/store/y.py": "def outer():\n    use(1)\n",
        "tests/store/test_x.py": "",
        "tests/test_a.py": "",
        "tests/test_b.py": "from satrap.store.x import take",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tests = ["tests/test_a.py::one", "tests/test_b.py::two", "tests/store/test_x.py::three"]
    seconds = dict(zip(tests, (0.1, 0.2, 0.3), strict=True))
    callers = {"src/satrap/store/x.py take": tests, "src/satrap/store/y.py outer": tests[:1]}
    choice = Choice(tmp_path, Survey(seconds, callers))
    [planted, *_] = mutants("src/satrap/store/x.py", b"def take():\n    return x + 1\n")
    assert choice.tests(planted, budget=9) == tests[::-1]
    assert choice.tests(planted, budget=0.45) == [tests[2], tests[0]]
    # what calls this one is compiled, too, so that nobody sees it called; the mirroring file always counts
    [compiled, *_] = mutants("src/satrap/store/x.py", b"def _compiled():\n    return x + 1\n")
    assert choice.tests(compiled, budget=9) == [tests[2], tests[0]]
    [level, *_] = mutants("src/satrap/store/x.py", b"LIMIT = 8\n")
    assert choice.tests(level, budget=9) == tests[::-1]


def test_what_reads_the_source_sees_all_numbers(tmp_path: Path) -> None:
    (tmp_path / READ_SOURCE).parent.mkdir(parents=True)
    (tmp_path / READ_SOURCE).write_text("")
    test = f"{READ_SOURCE}::one"
    choice = Choice(tmp_path, Survey({test: 1.0}, {}))
    number, other = mutants("src/satrap/store/x.py", b"def take(x=1):\n    del x[0]\n")[::2]
    assert (number.operator, choice.tests(number, budget=9)) == ("constant", [test])
    assert (other.operator, choice.tests(other, budget=9)) == ("deletion dropped", [])


def test_what_was_judged_equivalent_is_still_there() -> None:
    known: dict[str, dict[str, set[str]]] = {}
    entries = tomllib.loads(REVIEWED.read_text(encoding="utf-8")).get("equivalent", [])
    for entry in entries:
        if entry["file"] not in known:
            source = (ROOT / entry["file"]).read_bytes()
            of = known[entry["file"]] = {line.strip(): set() for line in source.decode().splitlines()}
            for mutant in mutants(entry["file"], source):
                of[source.splitlines()[mutant.line - 1].decode().strip()].add(mutant.after)
        assert entry["line"] in known[entry["file"]], entry
        after = entry["after"] if isinstance(entry["after"], list) else [entry["after"]]
        assert known[entry["file"]][entry["line"]].issuperset(after), entry
        assert len(entry["reason"]) > 20, entry
    [pages] = [entry for entry in entries if entry["line"] == "PAGE = 4096"]
    listed = [Mutant(pages["file"], 1, 0, 4, "4096", after, "constant", "") for after in ("4095", "0")]
    assert [equivalent(mutant, "PAGE = 4096") != "" for mutant in listed] == [True, False]


def test_a_mutant_cannot_change_the_network_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if prefix := isolation():
        links = subprocess.check_output([*prefix, "ls", "/proc/sys/net/ipv4/conf"], text=True).split()
        assert set(links) == {"all", "default", "lo"}
    connects = "server = socket.create_server(('127.0.0.1', 0)); "
    connects += "socket.create_connection(server.getsockname())"
    subprocess.run([*prefix, sys.executable, "-c", f"import socket; {connects}"], check=True)
    monkeypatch.setattr("tools_dev.mutants.__main__.isolation", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit, match="need a network namespace"):
        check_isolation()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_isolation()
