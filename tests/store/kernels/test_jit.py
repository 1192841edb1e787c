import importlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import satrap
from satrap.runtime.numba_cache import digest_of
from satrap.store.kernels import batch, hashing, jit, optimizers, rows
from satrap.store.kernels.index import slot_index

PROGRAM = """
import numpy as np
from satrap.store.hashes import bucket_of
from satrap.store.kernels import hashing
bucket_of("a", np.arange(3, dtype=np.uint64))
print(sum(hashing.buckets.stats.cache_hits.values()), sum(hashing.buckets.stats.cache_misses.values()))
"""


def run(folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return tuple(map(int, done.stdout.split()))


@pytest.mark.cluster
def test_machine_code_is_kept_and_used_by_the_next_process(tmp_path):
    assert run(tmp_path) == (0, 1)
    assert run(tmp_path) == (1, 0)


def test_an_edit_of_any_kernel_source_changes_the_folder(tmp_path, monkeypatch):
    package = Path(satrap.__file__).parent
    sources = [*package.glob("store/kernels/**/*.py"), package / "exchange" / "kernels.py"]
    copies = [tmp_path / path.relative_to(package) for path in sources]
    for path, copy in zip(sources, copies, strict=True):
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert digest_of(jit.sources()) in (jit.CACHE_FOLDER or digest_of(jit.sources()))
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "store" / "kernels" / "jit.py"))
    seen = {digest_of(jit.sources())}
    for path in copies:
        stamp = path.stat().st_mtime
        path.write_bytes(path.read_bytes() + b"#")
        os.utime(path, (stamp, stamp))  # as in a wheel: the time says nothing
        seen.add(digest_of(jit.sources()))
    assert len(seen) == 1 + len(copies)


def test_kernels_work_where_no_folder_is_writable(monkeypatch):
    monkeypatch.setattr(jit, "CACHE_FOLDER", None)
    double = jit.kernel(lambda x: 2 * x)
    assert double(4) == 8


def meant(signature):
    """What a kernel is meant to be compiled anew for: classes of its arguments, and arguments left out."""
    return tuple(getattr(kind, "instance_class", kind == numba.types.none) for kind in signature)


def test_every_kernel_compiles_once():
    """Run after other tests: whatever was called has one specialisation per optimizer and format."""
    for module in (batch, hashing, slot_index, optimizers, rows):
        for name, value in vars(importlib.import_module(module.__name__)).items():
            if hasattr(value, "signatures") and value.targetoptions.get("nogil") and is_kernel(value):
                distinct = {meant(signature) for signature in value.signatures}
                assert len(value.signatures) == len(distinct), (name, value.signatures)


def is_kernel(dispatcher):
    return type(dispatcher._cache).__name__ != "NullCache"
