import warnings

import pytest

from satrap.data.formats import csv
from satrap.runtime.satrap_warnings import told


@pytest.mark.filterwarnings("always")
def test_only_warnings_of_our_own_code_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: print(f"shown: {message}")
    try:
        with told(said.append):
            warnings.warn_explicit("ours", RuntimeWarning, csv.__file__, 1)
            warnings.warn_explicit("theirs", RuntimeWarning, "/elsewhere/code.py", 1)
        warnings.warn_explicit("after", RuntimeWarning, csv.__file__, 1)
    finally:
        warnings.showwarning = before
    assert said == ["warning: ours"]
    assert capfd.readouterr().out == "shown: theirs\nshown: after\n"
