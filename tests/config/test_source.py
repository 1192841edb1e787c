import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from satrap.config import load, source
from satrap.config.show import to_yaml
from satrap.config.source import read
from satrap.errors import ConfigError
from tests.config.recipes import TEXT, write
from tests.support.examples import examples


def test_values_and_places(tmp_path: Path) -> None:
    path = write(tmp_path, "a:\n  b: 1\n  c: [x, {d: 2.5}]\ne: true\nf:\n")
    source = read(path)
    assert source.values == {"a": {"b": 1, "c": ["x", {"d": 2.5}]}, "e": True, "f": None}
    assert source.places[("a", "b")] == f"{path}:2"
    assert source.places[("a", "c", 1, "d")] == f"{path}:3"
    assert source.place(("a", "b", "not there")) == f"{path}:2"
    assert source.where(("e",)) == f"{path}:4, key e"
    assert source.where(("zzz",)) == f"{path}, key zzz"


def test_overrides_replace_and_add_and_tell_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "a:\n  b: {x: 1, y: 2}\n")
    source = read(path, ["a.b={x: 9}", "a.c=1e-3", "new.key=[p, q]", "empty="])
    assert source.values == {
        "a": {"b": {"x": 9}, "c": 0.001},
        "new": {"key": ["p", "q"]},
        "empty": None,
    }
    assert source.where(("a", "b", "x")) == "--set a.b"
    assert source.place(("a", "c")) == "--set a.c"
    assert ("a", "b", "y") not in source.places


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("a", "cannot read the override"),
        (".b=1", "cannot read the override"),
        ("a.b.c=1", "a.b is not a mapping"),
        ("a=[1", "not valid YAML"),
        ("a=!!python/object/apply:os.getcwd []", None),
    ],
)
def test_impossible_overrides(tmp_path: Path, override: str, what: str | None) -> None:
    path = write(tmp_path, "a: {b: 1}\n")
    if what is None:  # a tag is never executed: the node is read as the plain list it is written as
        assert read(path, [override]).values == {"a": []}
        return
    with pytest.raises(ConfigError, match=what) as caught:
        read(path, [override])
    assert caught.value.where.startswith("--set")


def test_keys_to_search_are_dotted_names(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("tune: {search: {dense.optimizer.lr: [1]}}\n")
    source = read(tmp_path / "r.yaml", ["tune.search.model.dropout=[0, 0.1]", "tune.usual=false"])
    search = {"dense.optimizer.lr": [1], "model.dropout": [0, 0.1]}
    assert source.values == {"tune": {"search": search, "usual": False}}
    assert source.where(("tune", "search", "model.dropout")) == "--set tune.search.model.dropout"
    assert source.where(("tune", "search", "dense.optimizer.lr")).endswith(
        "r.yaml:1, key tune.search.dense.optimizer.lr"
    )


def test_a_key_twice_names_both_places(tmp_path: Path) -> None:
    path = write(tmp_path, "a: {b: 1}\nc: 2\na: {d: 1}\n")
    with pytest.raises(ConfigError, match="'a' is given twice") as caught:
        read(path)
    assert caught.value.where == f"{path}:3, key a"
    assert f"{path}:1" in caught.value.why
    with pytest.raises(ConfigError, match="'c' is given twice") as caught:
        read(write(tmp_path, "c: 2\n"), ["c=1", "c=2"])
    assert caught.value.where == "--set c"


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("a: [1\nb: 2\n", "not valid YAML", 2),
        ("- a\n- b\n", "must be a mapping", None),
        ("", "must be a mapping", None),
        ("a: 1\n<<: {b: 2}\n", "merge keys are not supported", 2),
        ("? [a, b]\n: 1\n", "keys must be plain strings", 1),
        ("a: !!int x\n", "cannot read the value", 1),
        ("a: !!python/name:os.system x\n", "cannot read the value", 1),
        ("a: 1\n--- \nb: 1\n", "not valid YAML", 2),
        ("a: !!bool x\n", "cannot read the value", 1),
        ("a: !!int ''\n", "cannot read the value", 1),
        ("a: !!float ''\n", "cannot read the value", 1),
        ("a: &x 1\nb: &x 2\n", "not valid YAML", None),
        ("[" * 1000, "too deeply or too large", None),
        ("[" * 70_000, "too deeply or too large", None),  # would take a quarter of an hour
        ("a: " + "{a: " * 5000, "too deeply or too large", None),
        ("a: [" + "x," * 100_000 + "]\n", "too deeply or too large", None),
    ],
)
def test_text_that_is_no_recipe(tmp_path: Path, text: str, what: str, line: int | None) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=what) as caught:
        read(path)
    assert caught.value.where == (str(path) if line is None else f"{path}:{line}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the recipe: No such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read the recipe: Is a directory"):
        read(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(tmp_path / "latin.yaml")


@pytest.mark.parametrize("what", ["pipe", "device", "long"])
def test_what_is_no_recipe_is_not_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "recipe.yaml"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="at most" if what == "long" else "not a regular file") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_aliases_work_but_cannot_explode(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a: &x {dim: 3}\nb: *x\n")).values == {"a": {"dim": 3}, "b": {"dim": 3}}
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    with pytest.raises(ConfigError, match="too deeply or too large"):
        read(write(tmp_path, bomb))
    with pytest.raises(ConfigError):
        read(write(tmp_path, "a: &a [*a]\n"))


words = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
keys = st.text("abcdefgh_", min_size=1, max_size=6)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(keys, trees, min_size=1, max_size=4))
@example({"a": "0..."})
def test_what_is_written_is_read(tmp_path: Path, values: dict[str, object]) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(to_yaml(values), encoding="utf-8")
    assert read(path).values == values


SIGNS = ["[", "]", "{", "}", "~", "null", "true", "'", '"', "''", "#", "@", "`"]
SIGNS += ["-1", "1e999", ".nan", ".inf", "2001-13-45", "1:60:99", "9" * 5000]
SIGNS += [f"{sign} " for sign in (":", "-", "?", "|", ">", "&a", "*a", "<<:")]
SIGNS += ["!!binary ", "!!map ", "!!set {a}", "!!omap [a: 1]", "!!bool x", "!!python/object:os.system "]
SIGNS += ["%YAML 9.9\n", "---\n", "...\n", "\t", "\n", "\0", "\ufeff"]


@settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_changed_recipe_is_one_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    """Some places of a valid recipe have something else, in the file or on the command line."""
    text, overrides = TEXT, []
    for _ in range(data.draw(st.integers(0, 4))):
        at, gone = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(SIGNS) | st.text(max_size=3)) + text[at + gone :]
    if data.draw(st.booleans()):
        key = data.draw(
            st.sampled_from(["data", "data.split.modulo", "features.user", "training.staleness", "x.y"])
        )
        overrides = [f"{key}={data.draw(st.sampled_from(SIGNS) | st.text(max_size=5))}"]
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        recipe = load(path, overrides)
    except ConfigError:
        return
    assert recipe.resolved()


@pytest.mark.parametrize("version", ["1.9", "9.9", "0.1"])
def test_an_unknown_version_of_yaml_is_refused(version: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"%YAML {version}\n---\ndata: {{train: a.csv}}\n")
    with pytest.raises(ConfigError, match="YAML"):
        load(recipe)


def nested(depth: int) -> str:
    return "{a: " * depth + "1" + "}" * depth


def test_limits_of_depth_and_size(tmp_path: Path) -> None:
    """A list of 98 ones has 99 nodes; the recipe, its list of aliases and 202 lists have 20,000."""
    read(write(tmp_path, nested(16)))
    full = f"a: &a [{', '.join(['1'] * 98)}]\nb: [{', '.join(['*a'] * 201)}]\n"
    assert len(read(write(tmp_path, full)).values["b"]) == 201
    read(write(tmp_path, f"a: 1\n#{',' * (4 * 20_000 - 2)}"))
    for text in (nested(17), full + "c: 1\n", f"a: 1\n#{',' * (4 * 20_000 - 1)}"):
        with pytest.raises(ConfigError, match="too deeply or too large"):
            read(write(tmp_path, text))


def test_a_file_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("#" * (1 << 20))
    assert len(source._text(path)) == 1 << 20
    path.write_text("#" * (1 << 20) + "#")
    with pytest.raises(ConfigError, match="at most 1,048,576 bytes"):
        source._text(path)


def test_values_as_errors_show_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, f"a: !!int {'x' * 81}\n"))
    assert caught.value.what == f"cannot read the value {'x' * 80!r}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n  b: 1\n c: 2\n", "not indented like the lines around it"),
        ("a: b: c\n", "a second ':' on the line"),
        ("a: 1\nb\nc: 2\n", "a key without ':'"),
        ("a: [1, 2\nb: 3\n", "lacks its ]"),
        ("a: {b: 1\nc: 3\n", "lacks its }"),
        ("a:\n\tb: 1\n", "a tab"),
        ("a: 'x\n", "a quote that is not closed"),
        ("a: *x\n", "this alias is not defined"),
        ("- a\nb: 1\n", "not indented"),
        ("a: 1\n--- \nb: 1\n", "one mapping"),
    ],
)
def test_the_parsers_complaints_are_in_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        read(tmp_path / "a.yaml")
    assert said in caught.value.what
    assert "<" not in caught.value.what
    assert len(str(caught.value).splitlines()) <= 4
