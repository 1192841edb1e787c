from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.models import arguments
from satrap.tools.init.settings import batch_size_of, is_small, settings, starts_at_mean


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


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        (0, 32),
        (5000, 32),
        (9999, 64),
        (10_000, 128),
        (72_400, 256),
        (72_420, 512),
        (10**6, 4096),
        (10**9, 4096),
    ],
)
def test_batches_by_the_rows(rows: int, size: int) -> None:
    """The power of two next to a 200th, by its logarithm: 72,408 rows are between 256 and 512."""
    assert batch_size_of(rows) == size


def test_limits_of_small_data() -> None:
    assert [is_small(rows, 0.5) for rows in (598, 600)] == [True, False]
    assert [is_small(rows, 0.75) for rows in (1196, 1200)] == [True, False]
    assert [starts_at_mean(rows, 0.5) for rows in (11_998, 12_000)] == [True, False]
    for share in (None, 0.0):
        assert (is_small(10, share), starts_at_mean(10, share)) == (False, False)


@pytest.mark.parametrize(
    ("rows", "width", "share", "model", "training", "rates"),
    [
        (9_999, 1024, 0.5, ("dcnv2", [64, 32], None), (60, 6, None), (0.001, 64, 2.4e-4)),
        (10_000, 1025, 0.5, ("dcnv2", [64, 32], 64), (60, 3, None), (0.001, 128, 6.1e-5)),
        (49_999, 9, None, ("dcnv2", [64, 32], None), (60, 3, None), (0.001, 256, 1.5e-5)),
        (50_000, 9, None, ("dcnv2", [128, 64], None), (60, 3, None), (0.001, 256, 1.5e-5)),
        (999_999, 9, None, ("dcnv2", [128, 64], None), (60, 3, None), (0.001, 4096, 6.0e-8)),
        (1_000_000, 9, None, ("dcnv2", [128, 64], None), (20, 2, 0.1), (0.001, 4096, 6.0e-8)),
        (9_999, 9, 0.01, ("lr", None, None), (60, 6, None), (0.003, 64, 2.4e-4)),
        (10_000, 9, 0.01, ("lr", None, None), (20, 2, 0.1), (0.01, 128, 6.1e-5)),
    ],
)
def test_settings_by_the_size(
    rows: int,
    width: int,
    share: float | None,
    model: tuple[object, ...],
    training: tuple[object, ...],
    rates: tuple[float, int, float],
) -> None:
    sections = settings(rows, width, share)
    found = {name: {key: value for key, (value, _) in keys.items()} for name, keys in sections.items()}
    network, epochs, batch = found["model"], found["training"], found["data"]["batch_size"]
    assert tuple(network.get(key) for key in ("name", "hidden", "rank")) == model
    if network["name"] == "dcnv2":
        assert (network["cross_layers"], network["dropout"]) == (2, 0.2)
    assert tuple(epochs[key] for key in ("epochs", "patience", "plateau")) == training
    assert (epochs["mode"], epochs["monitor"], epochs["seed"]) == ("sync", "logloss", 1)
    assert found["data"]["global_batch"] is True
    assert found["dense"]["optimizer"] == {"name": "adam", "lr": rates[0]}
    optimizer = {"name": "adagrad", "lr": 0.05, "initial_accumulator": rates[2]}
    assert (batch, found["embedding"]["optimizer"]) == (rates[1], optimizer)
