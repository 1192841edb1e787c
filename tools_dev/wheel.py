"""Builds wheel and sdist, installs the wheel in an empty environment, and runs the core of the tests there.

`make test-wheel` runs it; with another interpreter: `python3 tools_dev/wheel.py --python python3.13`. It
needs a network for the packages, and only the standard library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-wheel"
PACKAGES = (
    "hypothesis",
    "pandas",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "scikit-learn",
    "torchmetrics",
)
"""Packages that the tests need besides satrap."""

CORE = (
    *("tests/test_batch.py", "tests/test_optim.py", "tests/test_schema.py", "tests/test_labels.py"),
    *("tests/config", "tests/metrics", "tests/models", "tests/store/memory", "tests/checkpoint"),
    *("tests/data/encode", "tests/data/formats", "tests/data/test_dataset.py"),
    *("tests/train/test_trainer.py", "tests/train/test_predictor.py", "tests/train/state"),
    *("tests/launch/test_fit.py", "tests/launch/test_scoring.py", "tests/cli/runs/test_train.py"),
    *("tests/cli/setup/test_quickstart.py", "tests/cli/trained/test_scoring.py"),
)
"""Tests of the core: data, rows, training, checkpoints and the commands for them."""

DATA = {"goodbooks.yaml", "ratings.csv.gz", "books.csv.gz", "py.typed"}
"""Files of the package that are not modules, and without which it does not work."""


def main(python: str, tests: list[str]) -> int:
    """Build, check, install and test; return the exit code of the tests."""
    wheel, source = built(python)
    print(f"built {wheel.name} ({wheel.stat().st_size >> 10:,} KiB), {source.name}", flush=True)
    problems = [*of_wheel(wheel), *of_source(source)]
    if problems:
        print(*problems, sep="\n")
        return 1
    inside = installed(python, wheel)
    place = run(inside, "-c", "import satrap; print(satrap.__file__)", capture=True)
    if not place.startswith(str(ENVIRONMENT)):
        print(f"the tests would not test the wheel, but {place}")
        return 1
    workers = ["-n", str(min(os.cpu_count() or 1, 8)), "--dist", "worksteal"]
    chosen = tests or [path for path in CORE if (ROOT / path).exists()]
    print(f"{len(chosen)} paths of tests with {place}", flush=True)
    return subprocess.run(
        [inside, "-m", "pytest", *workers, *chosen], cwd=ROOT, env=plain(), check=False
    ).returncode


def plain() -> dict[str, str]:
    """Return the environment variables without a path to the source."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "OMP_NUM_THREADS": "1"}


def run(python: str | Path, *arguments: str, capture: bool = False) -> str:
    """Run Python outside the source; return its output, if captured."""
    done = subprocess.run(
        [python, *arguments], cwd=ENVIRONMENT, env=plain(), check=True, text=True, capture_output=capture
    )
    return done.stdout.strip() if capture else ""


def built(python: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, in dist/; return wheel and sdist."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    builder = ENVIRONMENT / "build"
    subprocess.run([python, "-m", "venv", builder], check=True)
    run(builder / "bin/python", "-m", "pip", "install", "-qq", "build")
    run(builder / "bin/python", "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT))
    [wheel], [source] = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    return wheel, source


def of_wheel(wheel: Path) -> list[str]:
    """Return problems of the content of a wheel: missing or foreign files."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/satrap").rglob("*.py")}
    problems = [f"{wheel.name} lacks {name}" for name in sorted(source - set(names))]
    problems += [f"{wheel.name} lacks {name}" for name in DATA - {Path(name).name for name in names}]
    foreign = [name for name in names if not name.startswith(("satrap/", "satrap-"))]
    return problems + [f"{wheel.name} has {name}, which is not of satrap" for name in foreign]


def of_source(source: Path) -> list[str]:
    """Return problems of the content of an sdist: files without which it cannot be built or cited."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "tests/conftest.py"}
    return [f"{source.name} lacks {name}" for name in sorted(needed - names)]


def installed(python: str, wheel: Path) -> Path:
    """Install the wheel, and the packages of the tests, in an empty environment; return its interpreter."""
    place = ENVIRONMENT / "tests"
    subprocess.run([python, "-m", "venv", place], check=True)
    inside = place / "bin/python"
    run(inside, "-m", "pip", "install", "-qq", os.environ.get("TORCH", "torch>=2.11,<2.14"))
    run(inside, "-m", "pip", "install", "-qq", f"{wheel}[serve]", *PACKAGES)
    return inside


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("tests", nargs="*", help="paths of tests; default the core")
    given = parser.parse_args()
    sys.exit(main(given.python, given.tests))
