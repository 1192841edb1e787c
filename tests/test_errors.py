"""Errors cross process borders as plain data."""

from __future__ import annotations

import json

import pytest

from satrap import errors
from satrap.errors import SatrapError, error_of, error_values
from satrap.launch import InterruptedRunError
from satrap.rpc.wire.frames import FrameError


@pytest.mark.parametrize(
    "kind", [errors.ConfigError, errors.DataError, errors.ExchangeError, InterruptedRunError, SatrapError]
)
def test_errors_arrive_as_they_were(kind: type[SatrapError]) -> None:
    error = kind("what", where="there", fix="do")
    again = error_of(json.loads(json.dumps(error_values(error))))
    assert type(again) is kind
    assert str(again) == str(error)


def test_an_error_with_more_parts_arrives_as_its_base() -> None:
    error = error_of(error_values(FrameError("broken")))
    assert type(error) is errors.ExchangeError
    assert error.what == "broken"


def test_an_unknown_kind_is_still_an_error() -> None:
    assert str(error_of({"type": "OSError", "what": "happened"})) == "happened"
    assert type(error_of({"type": "OSError", "what": "happened"})) is SatrapError
