"""Own code is ordinary Python: what `find` returns behaves as the same code run by Python itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from satrap.errors import ConfigError, SatrapError, TrainingError
from satrap.runtime import user_code


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.py"


def refused(reference: str, kind: type[SatrapError] = ConfigError) -> SatrapError:
    with pytest.raises(kind) as caught:
        user_code.find(reference)
    assert str(caught.value).count("\n") <= 3
    return caught.value


def test_a_function_of_a_file_and_of_a_module(tmp_path: Path) -> None:
    file = write(tmp_path, net="def twice(x):\n    return 2 * x\n")
    assert user_code.find(f"{file}:twice")(21) == 42
    import math

    assert user_code.find("math:sqrt") is math.sqrt
    assert user_code.reference_of(user_code.find(f"{file}:twice")) == f"{tmp_path.name}/net.py:twice"
    assert user_code.reference_of(len) is None


def test_modules_beside_a_file_belong_to_it_alone(tmp_path: Path) -> None:
    main = "from part import VALUE\nfrom more.deep import OTHER\ndef value():\n    return VALUE, OTHER\n"
    places = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        places.append(write(folder, net=main, part=f"VALUE = {number}\n"))
        write(folder / "more", __init__="", deep=f"OTHER = -{number}\n")
    before, path = set(sys.modules), list(sys.path)
    stranger = sys.modules["part"] = ModuleType("part")
    assert [user_code.find(f"{place}:value")() for place in places] == [(1, -1), (2, -2)]
    assert sys.modules.pop("part") is stranger
    assert {"more", "more.deep"}.isdisjoint(set(sys.modules) - before)
    assert sys.path == path
    names = ["net.py", "part.py", "__init__.py", "deep.py"]
    assert {file.name for file in user_code.files(places[0])} == set(names)


def test_a_changed_file_is_imported_again(tmp_path: Path) -> None:
    file = write(tmp_path, net="def f():\n    return 1\n")
    assert user_code.find(f"{file}:f") is user_code.find(f"{file}:f")
    write(tmp_path, net="def f():\n    return 22\n")
    assert user_code.find(f"{file}:f")() == 22


def test_a_dataclass_and_its_annotations_work(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Box:\n    x: int\n"
    assert user_code.find(f"{write(tmp_path, net=text)}:Box")(x=3).x == 3


@pytest.mark.parametrize("reference", ["MyNet", "net.py", "net.py:", ":MyNet", "net.py:My Net", ""])
def test_a_reference_has_two_parts(reference: str) -> None:
    with pytest.raises(ConfigError, match="is not a reference to your own code"):
        user_code.parts(reference)


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path, net="class MyNet:\n    pass\n")
    assert refused(f"{file}:MyNett").fix == "did you mean 'MyNet'? allowed: MyNet"
    assert refused(f"{tmp_path}/nett.py:MyNet").where == f"{tmp_path}/nett.py"
    assert refused("no_such_module_here:MyNet").what == "module 'no_such_module_here' does not exist"
    assert refused("no_such.module_here:MyNet").what == "module 'no_such.module_here' does not exist"
    broken = write(tmp_path, broken="x = 1\ndef (:\n")
    assert refused(f"{broken}:x").where == f"{broken}:2"
    raising = write(tmp_path, raising="from deeper import y\n", deeper="\n\ny = 1 / 0\n")
    error = refused(f"{raising}:y")
    assert error.what == "raising.py cannot be imported: ZeroDivisionError: division by zero"
    assert error.where == f"{tmp_path}/deeper.py:3, in <module>"
    missing = refused(f"{write(tmp_path, missing='import no_such_module_here')}:x")
    assert "No module named 'no_such_module_here'" in missing.what


def test_arguments() -> None:
    def call(schema: object, hidden: int, *, scale: float = 1.0) -> None: ...

    user_code.check_arguments(call, "call", {"hidden": 1, "scale": 2.0}, first=1)
    with pytest.raises(ConfigError, match="call has no argument 'hiden'") as caught:
        user_code.check_arguments(call, "call", {"hiden": 1}, first=1)
    assert caught.value.fix == "did you mean 'hidden'? allowed: hidden, scale"
    with pytest.raises(ConfigError, match="call has no argument 'schema'"):
        user_code.check_arguments(call, "call", {"schema": 1, "hidden": 1}, first=1)
    with pytest.raises(ConfigError, match="call needs the argument 'hidden'"):
        user_code.check_arguments(call, "call", {}, first=1)
    user_code.check_arguments(lambda schema, **rest: None, "call", {"anything": 1}, first=1)


def test_the_place_of_a_function(tmp_path: Path) -> None:
    file = write(tmp_path, net="\n\ndef f():\n    pass\n")
    assert user_code.place_of(user_code.find(f"{file}:f")) == f"{file}:3"
    assert user_code.place_of(len) == ""


def test_only_errors_of_own_code_are_blamed_on_it(tmp_path: Path) -> None:
    file = write(tmp_path, net="def f():\n    {}['key']\n")
    f = user_code.find(f"{file}:f")
    with (
        pytest.raises(TrainingError, match="it failed: KeyError: 'key'") as caught,
        user_code.blaming("it failed"),
    ):
        f()
    assert caught.value.where == f"{file}:2, in f"
    with pytest.raises(KeyError), user_code.blaming("it failed"):
        {}["key"]
    with pytest.raises(SatrapError, match="as it is"), user_code.blaming("it failed"):
        raise SatrapError("as it is")
