"""The reader that follows the tutorials notices every kind of lie."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import FalsePageError, follow, occurs, steps

PAGE = """\
# A page

```yaml title="greeting.txt"
hello
```

Text.

```console
$ cat greeting.txt
hello
$ printf '%s\\n' one "two 2.718" \\
>   three four
two ...
...
four
$ true
```

```python
from pathlib import Path

print(Path("greeting.txt").read_text().strip(), "world")
```

```text
hello world
```
"""


def page(folder: Path, text: str) -> Path:
    (folder / "page.md").write_text(text, encoding="utf-8")
    return folder / "page.md"


def test_a_true_page_passes(tmp_path: Path) -> None:
    assert [step.kind for step in steps(PAGE)] == ["file", "shell", "shell", "shell", "python"]
    follow(page(tmp_path, PAGE), tmp_path)


@pytest.mark.parametrize(
    ("true", "false", "message"),
    [
        ("\nhello\n$", "\nhallo\n$", r"line 10: cat greeting.txt\nthe page shows:\nhallo\nit prints:\nhello"),
        ("two ...\n...\nfour", "two ...\nfour", r"line 12: printf"),
        ("two ...\n...\nfour", "four\n...\ntwo ...", r"line 12: printf"),
        ("two ...\n", "two 3...\n", r"line 12: printf"),
        ("$ true", "$ false", r"line 17: false\nexit code 1"),
        ("$ true", "$ satrap-does-not-exist", r"exit code 127"),
        ("$ true", "$ true\nsomething", r"line 17: true\nthe page shows:\nsomething"),
        ("hello world\n", "goodbye\n", r"line 20: (.*\n)*the page shows:\ngoodbye"),
        ("from pathlib import Path", "import no_such_module", r"exit code 1\n(.*\n)*.*ModuleNotFoundError"),
        ('yaml title="greeting.txt"', "yaml", r"line 3: a block that nothing checks: yaml"),
        ("```text", "And so on.\n\n```text", r"a block that nothing checks: text"),
        ("```text", "```", r"a fence without language"),
        ("```text\nhello world\n```", "```text\nhello world", r"without end"),
        ("$ cat", "cat", r"begins with a command"),
    ],
)
def test_a_page_that_lies_fails(tmp_path: Path, true: str, false: str, message: str) -> None:
    assert PAGE.count(true) == 1
    with pytest.raises(FalsePageError) as error:
        follow(page(tmp_path, PAGE.replace(true, false)), tmp_path)
    assert re.search(message, str(error.value)), error.value


def test_what_is_only_quoted_is_not_run(tmp_path: Path) -> None:
    quoted = "```python\nimport no_such_module\n```\n"
    follow(page(tmp_path, f"Text.\n\n<!-- not run: it is not installed -->\n{quoted}"), tmp_path)
    with pytest.raises(FalsePageError):
        follow(page(tmp_path, f"<!-- not run: it is not installed -->\n\nText.\n\n{quoted}"), tmp_path)


def test_output_occurs_as_whole_lines() -> None:
    assert occurs("", "anything")
    assert occurs("b\nc", "a\nb\nc\nd\n")
    assert not occurs("b\nd", "a\nb\nc\nd\n")
    assert not occurs("b", "ab\n")
    assert not occurs("b", "bc\n")
    assert occurs("AUC 0.7...", "AUC 0.7163\n")
    assert not occurs("AUC 0.7...", "AUC 0.6999\n")
    assert not occurs("a.c", "abc\n")
    assert occurs("AUC 0.7163, logloss 0.5...", "AUC 0.7001, logloss 0.5200\n")
    assert not occurs("AUC 0.7163", "AUC 0.6811\n")
    assert occurs("AUC 0.7163", "AUC 0.6811\nAUC 0.7200\n")
    assert not occurs("AUC 0.7163", "AUC 0.71630\n")
    assert not occurs("time 0.716", "time 0.717\n")
