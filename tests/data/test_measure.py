import numpy as np
import pytest

from satrap import Numeric, Schema
from satrap.data import RowSplit, measure, read
from satrap.errors import ConfigError
from tests.data.helpers_data import error_of


def test_mean_and_deviation_at_that_step_of_the_chain():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(30_000) < 0.2, np.nan, rng.lognormal(3, 1, 30_000))
    big = 1.6e9 + rng.normal(size=30_000)
    schema = Schema(
        ["y"],
        {
            "x": Numeric(transform=["log1p", "standardize", {"clip": [-3, 3]}]),
            "big": Numeric(transform="standardize"),
            "plain": Numeric(column="x"),
        },
    )
    rows = RowSplit(10, (0, 1, 2))
    dataset = read({"x": x, "big": big}, schema.without_labels(), rows=rows, shuffle=True)
    with pytest.raises(ConfigError, match="measure"):
        list(dataset)
    measured = measure(schema, dataset)
    kept = np.arange(30_000) % 10 < 3
    logs = np.log1p(x[kept & ~np.isnan(x)])
    assert measured.numeric["x"].transform[1] == {
        "standardize": {"mean": pytest.approx(logs.mean()), "std": pytest.approx(logs.std())}
    }
    assert measured.numeric["big"].transform[0]["standardize"]["std"] == pytest.approx(
        big[kept].std(), rel=1e-6
    )
    assert measured.numeric["plain"] == schema.numeric["plain"]
    assert Schema.from_dict(measured.to_dict()) == measured
    assert measure(measured, dataset) is measured
    batches = list(dataset.with_options(schema=measured.without_labels()))
    z = np.concatenate([b.numeric[:, 1] for b in batches])
    assert abs(z.mean()) < 1e-3
    assert z.std() == pytest.approx(1, rel=1e-3)


def test_nothing_to_measure():
    schema = Schema([], {"x": Numeric(transform="standardize")})
    dataset = read({"x": [None, float("nan")]}, schema)
    assert "no numbers to measure" in error_of(lambda: measure(schema, dataset)).what
