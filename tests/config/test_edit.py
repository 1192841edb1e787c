from ruamel.yaml import YAML

from satrap.config.edit import edited

TEXT = """\
# first
a: 1   # one
b: {c: [1, 2], d: "x"}  # flow

# before e
e:
  - f: 2.50  # kept as written
g: null
"""


def test_values_change_and_comments_stay() -> None:
    values = {"a": 2, "b": {"c": [1, 2], "d": "x", "new": True}, "e": [{"f": 2.5}], "g": None}
    text = edited(TEXT, values)
    assert YAML(typ="safe", pure=True).load(text) == values
    for kept in ("# first", "# one", "# flow", "# before e", "2.50  # kept as written", '"x"'):
        assert kept in text


def test_the_same_values_give_the_same_text() -> None:
    assert edited(TEXT, YAML(typ="safe", pure=True).load(TEXT)).split() == TEXT.replace(" null", "").split()


def test_keys_that_are_not_wanted_are_removed() -> None:
    assert YAML(typ="safe", pure=True).load(edited(TEXT, {"b": {"d": "y"}})) == {"b": {"d": "y"}}
