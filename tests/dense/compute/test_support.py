"""What a network or an old PyTorch cannot do is refused by the name of the feature."""

from __future__ import annotations

import pytest
from torch import nn

from satrap.dense.compute.support import check_no_batch_norm, check_pytorch
from satrap.errors import ConfigError

NORMS = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.LazyBatchNorm1d()]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_every_batch_normalization_is_found_by_its_name(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(norm))
    with pytest.raises(
        ConfigError, match=r"a feature cannot be combined with batch normalization: 1\.0"
    ) as caught:
        check_no_batch_norm(model, "a feature", "a reason", "another way")
    assert caught.value.why == "a reason"
    assert caught.value.fix == "another way, or use the model without batch_norm"


def test_other_normalizations_are_no_batch_normalization() -> None:
    check_no_batch_norm(nn.Sequential(nn.LayerNorm(2), nn.InstanceNorm1d(2)), "a feature", "", "")


def test_a_newer_pytorch_than_the_installed_one_is_an_error() -> None:
    check_pytorch("2.0", "a feature", "")
    with pytest.raises(ConfigError, match=r"a feature needs PyTorch 99\.1 or newer, but 2\.") as caught:
        check_pytorch("99.1", "a feature", "a reason")
    assert caught.value.fix == "pip install 'torch>=99.1', or remove a feature"
