import numpy as np
import pytest

from satrap import Numeric
from satrap.data.encode.transforms import compile_steps, steps_of, unmeasured
from satrap.errors import ConfigError


def apply(transform, values):
    return compile_steps(Numeric(transform=transform), "n")(np.asarray(values, np.float64)).tolist()


def test_steps_in_order():
    assert apply(None, [1, 2]) == [1, 2]
    assert apply("log1p", [-3, 0]) == [0, 0]
    assert apply({"clip": [0, 10]}, [-1, 5, 11]) == [0, 5, 10]
    assert apply([{"clip": [0, 10]}, {"standardize": {"mean": 4, "std": 2}}], [-1, 11]) == [-2, 3]
    assert apply({"standardize": {"mean": 4, "std": 0}}, [4, 4]) == [0, 0]
    assert apply("log10", [-3, 0, 99]) == [0, 0, 2]
    assert apply("sqrt", [-4, 0, 16]) == [0, 0, 4]
    assert apply({"minmax": {"min": 2, "max": 6}}, [2, 4, 6, 8]) == [0, 0.5, 1, 1.5]
    assert apply({"minmax": {"min": 2, "max": 2}}, [2, 3]) == [0, 1]
    assert np.isnan(apply(["log1p", {"clip": [0, 1]}], [np.nan])[0])


def test_as_many_steps_as_are_wanted():
    feature = Numeric(transform=["sqrt", {"clip": [3, 3]}, "log1p"])
    found = [compile_steps(feature, "n", count)(np.array([16.0])).tolist() for count in range(3)]
    assert found == [[16.0], [4.0], [3.0]]
    assert compile_steps(feature, "n")(np.array([16.0])).tolist() == [np.log1p(3.0)]


def test_unmeasured():
    assert unmeasured(Numeric(transform=[{"quantiles": 10_000}])) == 0
    assert unmeasured(Numeric(transform=[{"quantiles": 10_001}])) is None
    assert unmeasured(Numeric(transform=["log1p", "standardize"])) == 1
    assert unmeasured(Numeric(transform={"standardize": {"mean": 0, "std": 1}})) is None
    assert unmeasured(Numeric(transform=["log1p", {"quantiles": 2}])) == 1
    assert unmeasured(Numeric(transform=[{"quantiles": [1.0, 2.0]}])) is None
    assert unmeasured(Numeric(transform=[{"quantiles": -5}])) is None  # an error, and nothing to measure
    assert steps_of(Numeric()) == []


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("log2p", "did you mean 'log1p'"),
        ("standardize", "measure"),
        ("minmax", "no min and max yet"),
        ({"minmax": {"min": 2, "max": 1}}, "min <= max"),
        ({"minmax": {"min": float("nan"), "max": 1}}, "finite min and max"),
        ({"sqrt": 3}, "sqrt takes no arguments"),
        ({"quantiles": 10}, "quantiles has no values yet"),
        ({"quantiles": 2}, "quantiles has no values yet"),
        ({"quantiles": 10_000}, "quantiles has no values yet"),
        ({"quantiles": 10_001}, "a count from 2 to 10000"),
        ({"quantiles": True}, "a count from 2 to 10000"),
        ({"quantiles": [1.0]}, "ascending values"),
        ({"quantiles": [[1.0, 2.0]]}, "ascending values"),
        ({"quantiles": 1}, "a count from 2 to 10000"),
        ({"quantiles": -5}, "a count from 2"),
        ({"quantiles": [1, 3, 2]}, "ascending values"),
        ({"quantiles": [1, float("nan")]}, "ascending values"),
        ({"quantiles": "many"}, "ascending values"),
        ({"clip": [3, 1]}, "low <= high"),
        ({"clip": 3}, "needs \\[low, high\\]"),
        ({"standardize": {"mean": 1}}, "needs {mean"),
        ({"standardize": {"mean": 1, "std": -1}}, "std >= 0"),
        ([{"clip": [0, 1], "log1p": None}], "a transform is a name"),
    ],
)
def test_impossible(transform, message):
    with pytest.raises(ConfigError, match=message):
        compile_steps(Numeric(transform=transform), "n")
