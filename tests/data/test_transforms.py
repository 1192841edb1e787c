import numpy as np
import pytest

from satrap import Numeric
from satrap.data.transforms import compile_steps, steps_of, unmeasured
from satrap.errors import ConfigError


def apply(transform, values):
    return compile_steps(Numeric(transform=transform), "n")(np.asarray(values, np.float64)).tolist()


def test_steps_in_order():
    assert apply(None, [1, 2]) == [1, 2]
    assert apply("log1p", [-3, 0]) == [0, 0]
    assert apply({"clip": [0, 10]}, [-1, 5, 11]) == [0, 5, 10]
    assert apply([{"clip": [0, 10]}, {"standardize": {"mean": 4, "std": 2}}], [-1, 11]) == [-2, 3]
    assert apply({"standardize": {"mean": 4, "std": 0}}, [4, 4]) == [0, 0]
    assert np.isnan(apply(["log1p", {"clip": [0, 1]}], [np.nan])[0])


def test_unmeasured():
    assert unmeasured(Numeric(transform=["log1p", "standardize"])) == 1
    assert unmeasured(Numeric(transform={"standardize": {"mean": 0, "std": 1}})) is None
    assert steps_of(Numeric()) == []


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("log2p", "did you mean 'log1p'"),
        ("standardize", "measure"),
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
