from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from satrap.init.settings import batch_size_of, is_small, settings
from satrap.models import arguments


@given(st.integers(1, 10**9), st.integers(1, 10**5), st.floats(1e-6, 1 - 1e-6))
def test_steps_and_cost_are_bounded(rows: int, width: int, share: float) -> None:
    found = settings(rows, width, share)
    batch = found["data"]["batch_size"][0]
    assert 32 <= batch <= 4096
    assert rows < 4_600 or rows // batch >= 78  # few steps learn little
    model = {key: value for key, (value, _) in found["model"].items()}
    assert set(model) - {"name"} <= set(arguments(model["name"]))
    assert model["name"] == "lr" or width <= 2048 or model["rank"] * width < 10**7  # weights of a cross layer


@given(st.integers(1, 10**9))
def test_larger_data_has_larger_steps(rows: int) -> None:
    assert batch_size_of(rows) <= batch_size_of(2 * rows)


@given(st.integers(1, 10**6), st.floats(1e-6, 1 - 1e-6))
def test_the_rarer_label_decides_which_model(rows: int, share: float) -> None:
    assert is_small(rows, share) == is_small(rows, 1 - share)
    assert is_small(rows, share) or not is_small(2 * rows, share)
    assert (settings(rows, 100, share)["model"]["name"][0] == "lr") == is_small(rows, share)
