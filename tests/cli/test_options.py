"""Values of options that several commands share."""

from __future__ import annotations

import click
import pytest

from satrap.cli.options import byte_size
from satrap.cli.setup.plan import _counts
from satrap.cli.setup.tune import _seconds

COMMAND = click.Command("x")
CONTEXT, OPTION = click.Context(COMMAND), click.Option(["--x"])


def test_sizes() -> None:
    for text, size in ((None, None), ("100", 100), ("4KiB", 4096), ("1.5MiB", 3 << 19)):
        assert byte_size(CONTEXT, OPTION, text) == size
    for text in ("4GB", "-1", "1.5"):
        with pytest.raises(click.BadParameter, match="should be a size such as 512MiB or 4GiB"):
            byte_size(CONTEXT, OPTION, text)


def test_times() -> None:
    for text, seconds in ((None, None), ("90s", 90), ("0.5m", 30), ("2h", 7200), ("1d", 86_400)):
        assert _seconds(CONTEXT, OPTION, text) == seconds


def test_names_and_numbers() -> None:
    assert _counts(CONTEXT, OPTION, ("user=30", "a=b=7")) == {"user": 30, "a=b": 7}
    for text in ("user", "=3", "user=", "user=-3", "user=x"):
        with pytest.raises(click.BadParameter, match=f"'{text}' is not NAME=N"):
            _counts(CONTEXT, OPTION, ("a=1", text))
