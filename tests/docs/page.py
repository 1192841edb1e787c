"""Follow a page of the documentation as a reader would: save files, run commands, compare what they print.

What a fenced block of a page means:

- with `title="NAME"`: a file; it is written to the folder.
- `console`: lines that begin with `$ ` are commands, `> ` continues one; the lines below are its output.
- `python`: a program of its own; a `text` block that follows at once is its output.
- after a line `<!-- not run: REASON -->`: quoted only, for programs that this repository does not install.

Output on a page must occur in what is printed, as consecutive whole lines. `...` stands for any characters of
a line, and alone on a line for any number of lines. Metrics, which are numbers with four decimals, may differ
by `TOLERANCE`: they depend on the processor. A command or program that fails, fails the page.

Programs and commands of satrap begin with its imports done, as all processes do that tests start.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from satrap.runtime.numba_cache import COMPILING

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^<!-- not run: .+ -->\n\Z", re.MULTILINE)
FENCE = re.compile(r"^ *```", re.MULTILINE)
METRIC = re.compile(r"(?<![\d.])(\d+\.\d{4})(?!\d)")
TOLERANCE = 0.03


class FalsePageError(AssertionError):
    """A page shows what does not happen."""


@dataclass(frozen=True)
class Step:
    """One thing the reader does, `line` of the page says where."""

    line: int
    kind: str
    """"file", "shell" or "python"."""
    text: str
    title: str = ""
    shown: str = ""
    """Output as the page shows it, "" for none."""


def steps(text: str) -> list[Step]:
    """Return what a page tells its reader to do, in order.

    Raises:
        FalsePageError: a block that this notation does not know, and so nobody would check.
    """
    found: list[Step] = []
    blocks = list(BLOCK.finditer(text))
    if len(FENCE.findall(text)) != 2 * len(blocks):
        raise FalsePageError("a fence without language, without end, or indented")
    end = -1
    for block in blocks:
        language, title, body = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        between = text[max(end, 0) : block.start()]
        end = block.end()
        if NOT_RUN.search(between):
            continue
        if title:
            found.append(Step(line, "file", body, title=title))
        elif language == "console":
            found += commands(body, line + 1)
        elif language == "python":
            found.append(Step(line, "python", body))
        elif language == "text" and found and found[-1].kind == "python" and not between.strip():
            found[-1] = Step(found[-1].line, "python", found[-1].text, shown=body)
        else:
            raise FalsePageError(f"line {line}: a block that nothing checks: {language}")
    return found


def commands(body: str, line: int) -> Iterator[Step]:
    """Yield the commands of a console block with the output shown below each."""
    if not body.startswith("$ "):
        raise FalsePageError(f"line {line}: a console block begins with a command")
    for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = 1
        while last < len(lines) and lines[last].startswith("> "):
            last += 1
        yield Step(line, "shell", "\n".join(text[2:] for text in lines[:last]), shown="\n".join(lines[last:]))
        line += len(lines)


def follow(page: Path, folder: Path, python: Path | None = None) -> None:
    """Do what a page says, in a folder.

    Args:
        page: the page.
        folder: the current folder of all steps.
        python: the Python of another environment, which a user would have activated; then every step begins
            with its imports, as it does for the user.

    Raises:
        FalsePageError: a command fails or prints something else; the message names the page's line.
    """
    for step in steps(page.read_text(encoding="utf-8")):
        if step.kind == "file":
            (folder / step.title).write_text(step.text, encoding="utf-8")
            continue
        code, printed = execute(step, folder, python)
        where = f"{page.name}, line {step.line}: {step.text}"
        if code != 0:
            raise FalsePageError(f"{where}\nexit code {code}\n{printed}")
        if not occurs(step.shown, printed.replace(f"{COMPILING}\n", "")):  # it comes once on a machine
            raise FalsePageError(f"{where}\nthe page shows:\n{step.shown}\nit prints:\n{printed}")


def started(step: Step) -> list[str]:
    """Return the command that does a step; one that means the same without a shell is a process less."""
    script = [sys.executable, "-m", "tests.docs.script"]
    if step.kind == "python":
        return [*script, "-"]
    text = step.text.replace("\\\n", "")
    bare = re.sub(r"'[^']*'|\"[^\"$`\\\\]*\"", "", text)
    if set(bare).isdisjoint("|&;<>$`*?~#()[]{}!'\"\\\n"):
        program, *words = shlex.split(text)
        if program == "satrap":
            return [str(Path(sys.executable).with_name("satrap")), *words]
        if program == "python" and words[0].endswith(".py"):
            return [*script, *words]
    return ["bash", "-c", step.text]


def execute(step: Step, folder: Path, python: Path | None = None) -> tuple[int, str]:
    """Run a command or a program; return its exit code and what it prints, errors included."""
    tools = os.path.dirname(python or sys.executable)
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = started(step)
    if python is not None:
        environment.pop("PYTHONPATH", None)
        command = [str(python), "-"] if step.kind == "python" else ["bash", "-c", step.text]
    done = subprocess.run(
        command,
        input=step.text if step.kind == "python" else "",
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout


def occurs(shown: str, printed: str) -> bool:
    """Whether the lines shown are among those printed, one after another; `...` and metrics as above."""
    lines = [_pattern(line.rstrip()) for line in shown.rstrip().splitlines()]
    metrics = [float(metric) for metric in METRIC.findall(shown)]
    text = "\n".join(printed.splitlines()) + "\n"
    pattern, start = re.compile("^" + "".join(lines), re.MULTILINE), 0
    while (found := pattern.search(text, start)) is not None:
        if all(abs(float(a) - b) <= TOLERANCE for a, b in zip(found.groups(), metrics, strict=True)):
            return True
        start = found.start() + 1
    return False


def _pattern(line: str) -> str:
    """Return a regular expression for a line of a page, with a group for each metric."""
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    texts = METRIC.split(line)[::2]
    words = (r".*".join(re.escape(word) for word in text.split("...")) for text in texts)
    return r"(\d+\.\d{4})".join(words) + r" *\n"
