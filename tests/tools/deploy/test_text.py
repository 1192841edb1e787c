from __future__ import annotations

from satrap.tools.deploy.text import LiteralBlock, to_yaml


def test_it_reads_as_a_person_would_write_it() -> None:
    shared = {"b": 1, "a": "x" * 200}
    assert to_yaml({"z": shared, "y": [shared], "text": LiteralBlock("one\ntwo\n")}) == (
        f"z:\n  b: 1\n  a: {'x' * 200}\ny:\n- b: 1\n  a: {'x' * 200}\ntext: |\n  one\n  two\n"
    )
