"""Triton's hash of an id is Numba's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from satrap.store.gpu.kernels import hashing
from satrap.store.kernels import hashing as on_cpu
from satrap.store.kernels.jit import kernel
from tests.store.gpu.model import unmix

pytestmark = pytest.mark.triton


@kernel
def mixed(ids: object, out: object) -> None:
    for i in range(ids.shape[0]):  # type: ignore[attr-defined]
        out[i] = on_cpu.mix(ids[i])  # type: ignore[index]


@triton.jit
def mix_all(x: tl.tensor, out: tl.tensor, n: int, BLOCK: tl.constexpr) -> None:
    """Write the mix of each int64, read as its 64 bits."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = hashing.mix(tl.load(x + i, mask=i < n, other=0).to(tl.uint64, bitcast=True))
    tl.store(out + i, h.to(tl.int64, bitcast=True), mask=i < n)


def test_every_bit_counts() -> None:
    rng = np.random.default_rng(0)
    ids = np.concatenate(
        [np.array([0, 1, 2**63, 2**64 - 1], np.uint64), rng.integers(0, 2**64, 1000, np.uint64)]
    )
    want = np.empty_like(ids)
    mixed(ids, want)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.from_numpy(ids.view(np.int64)).to(device)
    out = torch.empty_like(x)
    mix_all[(-(-len(ids) // 256),)](x, out, len(ids), BLOCK=256)
    np.testing.assert_array_equal(out.cpu().numpy().view(np.uint64), want)


def test_the_mix_can_be_undone() -> None:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 500)).to(
        "cuda" if torch.cuda.is_available() else "cpu"
    )
    out = torch.empty_like(x)
    mix_all[(2,)](x, out, len(x), BLOCK=256)
    for h, want in zip(out.tolist(), x.tolist(), strict=True):
        assert unmix(h % 2**64) == want % 2**64
