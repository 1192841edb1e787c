from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from satrap.init.settings import batch_size_of, settings
from satrap.models import arguments


@given(st.integers(1, 10**9), st.integers(1, 10**5))
def test_steps_and_cost_are_bounded(rows: int, width: int) -> None:
    found = settings(rows, width)
    batch = found["data"]["batch_size"][0]
    assert 32 <= batch <= 4096
    assert rows < 20_000 or rows // batch >= 100  # few steps learn little
    model = {key: value for key, (value, _) in found["model"].items()}
    assert set(model) - {"name"} <= set(arguments(model["name"]))
    assert width <= 2048 or model["rank"] * width < 10**7  # weights of a cross layer


@given(st.integers(1, 10**9))
def test_larger_data_has_larger_steps(rows: int) -> None:
    assert batch_size_of(rows) <= batch_size_of(2 * rows)
