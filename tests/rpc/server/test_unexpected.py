"""What is said of an error that nobody foresaw: to the client always, in the log once."""

from __future__ import annotations

import pytest

from satrap.errors import ConfigError, StoreError
from satrap.rpc.server import unexpected as module
from satrap.rpc.server.unexpected import MOST, answerable


@pytest.fixture(autouse=True)
def _nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_logged", set())


def told(error: BaseException, *, begun: bool = True) -> StoreError:
    with pytest.raises(StoreError) as caught, answerable("shard: lookup", begun=begun):
        raise error
    return caught.value


def test_what_is_meant_for_the_client_stays_what_it_is() -> None:
    meant = ConfigError("no", fix="yes")
    with pytest.raises(ConfigError) as caught, answerable("shard: lookup", begun=True):
        raise meant
    assert caught.value is meant
    for end in (KeyboardInterrupt, SystemExit):
        with pytest.raises(end), answerable("shard: lookup", begun=True):
            raise end


def test_the_client_hears_what_and_whether_something_changed() -> None:
    error = told(KeyError("x"))
    assert error.what == "the request failed unexpectedly, KeyError: 'x'"
    assert (error.where, error.why) == ("shard: lookup", "the request may have been executed in part")
    error = told(KeyError("x" * 10_000), begun=False)
    assert len(error.what) < 300
    assert error.why == "the request was rejected, and has changed nothing"


def test_the_log_holds_each_traceback_once_and_not_endlessly_many(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(100):
        told(KeyError("x"))
    log = capsys.readouterr().err
    assert log.count("Traceback") == 1
    assert "raise error\nKeyError: 'x'" in log
    assert log.startswith("unexpected error (shard: lookup)")
    for number in range(3 * MOST):
        told(type(f"E{number}", (Exception,), {})())
    assert capsys.readouterr().err.count("Traceback") == MOST - 1


def test_too_little_memory_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not enough memory" in told(MemoryError(), begun=False).what
    assert capsys.readouterr().err == ""
