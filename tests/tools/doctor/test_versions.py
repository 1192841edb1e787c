import platform
from importlib.metadata import version

import pytest
from packaging.specifiers import SpecifierSet

from satrap.tools.doctor.versions import fits, unfit, versions


@pytest.mark.parametrize(
    "allowed", ["<2.14,>=2.11", ">=2.13", ">=1.26", "<2.14", ">2.12", "<=2.13", "!=2.0,>=2.13", ""]
)
@pytest.mark.parametrize("found", ["2.13.0+cpu", "2.14.0", "2.10.1", "1.26", "2.9", "2.13", "10.0", "2.11"])
def test_fits_agrees_with_packaging(found: str, allowed: str) -> None:
    assert fits(found, allowed) == SpecifierSet(allowed).contains(found.partition("+")[0])


def test_what_is_missing_or_does_not_fit_is_named() -> None:
    required = [
        "numpy>=1.26",
        "no-such-library>=1",
        "torch<1,>=0.1",
        "nothing>=1; extra == 'dev'",
        "fsspec[http]>=99999",
    ]
    found = list(unfit(required, ">=3.99"))
    assert [(one.check, one.level) for one in found] == [
        ("Python", "error"),
        ("no-such-library", "error"),
        ("torch", "error"),
        ("fsspec", "error"),
    ]
    assert version("torch") in found[2].found
    assert (found[0].found, found[0].fix) == (f"Python is {platform.python_version()}", "use Python >=3.99")
    assert found[1].found == "not installed"
    assert found[1].fix == "pip install 'no-such-library>=1'"


def test_this_environment_fits() -> None:
    [finding] = versions()
    assert finding.level == "ok"
    assert f"Python {platform.python_version()}" in finding.found
    assert f"torch {version('torch')}" in finding.found
