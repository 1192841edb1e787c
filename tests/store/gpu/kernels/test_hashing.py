"""Triton's hash of an id is Numba's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.store.gpu.kernels import hashing
from satrap.store.kernels import hashing as on_cpu
from satrap.store.kernels.jit import kernel

pytestmark = pytest.mark.triton


@kernel
def mixed(ids: object, out: object) -> None:
    for i in range(ids.shape[0]):  # type: ignore[attr-defined]
        out[i] = on_cpu.mix(ids[i])  # type: ignore[index]


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
    hashing.mix_all[(-(-len(ids) // 256),)](x, out, len(ids), BLOCK=256)
    np.testing.assert_array_equal(out.cpu().numpy().view(np.uint64), want)
