from __future__ import annotations

import pytest

from satrap.dense import Mesh
from satrap.dense.comm.workers import Compression
from satrap.errors import ConfigError
from satrap.tools.plan.dense.copies import need_of_copy
from tests.tools.plan.dense.measured import Tower, network, peak

WEIGHTS = sum(p.numel() for p in Tower().parameters())


def test_one_process_needs_what_pytorch_counts() -> None:
    """`tests/cluster/test_dense_plan.py` has meshes and other settings."""
    need = need_of_copy(network(), Mesh())
    assert need.peak == pytest.approx(peak(None, {}), rel=0.02)
    assert need.memory["parameters"] == 4 * WEIGHTS
    assert need.memory["optimizer"] == 8 * WEIGHTS
    assert need.traffic == 0


def test_an_optimizer_that_is_elsewhere() -> None:
    plain, on_disk, on_host = (need_of_copy(network(offload=o), Mesh()) for o in ("", "disk", "cpu"))
    assert [need.memory.get("optimizer", 0) for need in (plain, on_disk, on_host)] == [8 * WEIGHTS, 0, 0]
    assert on_host.peak <= on_disk.peak < plain.peak


def test_bytes_that_meshes_send() -> None:
    net, n = network(), 4 * WEIGHTS
    copies = need_of_copy(net, Mesh(4)).sent
    assert copies == {"gradients": 2 * 3 / 4 * n}  # a ring
    short = need_of_copy(network(number_bytes=2), Mesh(4)).sent
    assert short == {"gradients": 3 / 4 * n}
    thin = need_of_copy(network(compression=Compression(1)), Mesh(4))
    assert thin.peak == pytest.approx(need_of_copy(net, Mesh(4)).peak + n, rel=0.02)
    assert thin.sent["gradients"] < copies["gradients"] / 20
    third = need_of_copy(net, Mesh(4, sharded=True)).sent
    assert sum(third.values()) == pytest.approx(3 * 3 / 4 * n, rel=0.01)  # ZeRO, arXiv 1910.02054, section 7
    second = need_of_copy(net, Mesh(4, sharded="gradients")).sent
    assert sum(second.values()) == pytest.approx(2 * 3 / 4 * n, rel=0.01)
    cut = need_of_copy(net, Mesh(1, 2)).sent
    # Two pairs of layers: each sums its outputs, and the gradients of its inputs.
    assert cut["activations"] == pytest.approx(2 * 2 * 2048 * 256 * 4, rel=0.01)
    assert cut["rows"] == net.inputs.row_bytes / 2
    whole = cut["gradients"]  # of what both have whole
    assert 0 < whole < n / 30
    both = need_of_copy(net, Mesh(2, 2)).sent["gradients"]
    assert both == 2 * 1 / 2 * (n - whole) / 2 + 2 * 3 / 4 * whole
    parts = need_of_copy(network(microbatches=4), Mesh(2, sharded=True)).sent
    assert parts["weights"] == pytest.approx(4 * n, rel=0.01)


def test_a_width_that_does_not_divide() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        need_of_copy(network(), Mesh(1, 3))
