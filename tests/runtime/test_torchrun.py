"""What `torchrun` tells a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from satrap.errors import ConfigError
from satrap.runtime.torchrun import Torchrun, address_towards

SECOND = {"WORLD_SIZE": 4, "RANK": 3, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 29400}
MACHINE = {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "daily"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, object]], None]:
    """Sets these variables and no others of `torchrun`."""

    def set_all(values: dict[str, object]) -> None:
        for name in {**SECOND, **MACHINE}:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return set_all


def test_a_process_of_several(environment: Callable[[dict[str, object]], None]) -> None:
    environment({**SECOND, **MACHINE})
    assert Torchrun.from_environment() == Torchrun("10.0.0.1:29400", 3, 4, 1, 2, "daily")


def test_without_numbers_of_its_machine_all_are_on_one(
    environment: Callable[[dict[str, object]], None],
) -> None:
    environment(dict(SECOND))
    assert Torchrun.from_environment() == Torchrun("10.0.0.1:29400", 3, 4, 3, 4, "")


@pytest.mark.parametrize("size", [None, 1])
def test_a_process_alone(environment: Callable[[dict[str, object]], None], size: int | None) -> None:
    environment({} if size is None else {"WORLD_SIZE": size})
    assert Torchrun.from_environment() is None


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_an_environment_is_refused(environment: Callable[[dict[str, object]], None], name: str) -> None:
    environment({key: value for key, value in SECOND.items() if key != name})
    with pytest.raises(ConfigError, match=f"variables of torchrun are incomplete.*{name}"):
        Torchrun.from_environment()


def test_the_way_to_this_machine_is_loopback() -> None:
    assert address_towards("127.0.0.1:9") == "127.0.0.1"
