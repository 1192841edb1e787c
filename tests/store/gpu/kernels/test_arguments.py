"""Tuples of arguments can be given to Triton."""

from __future__ import annotations

import pytest
import triton.language as tl

from satrap.store.gpu.kernels import arguments

pytestmark = pytest.mark.triton

TUPLES = [kind for kind in vars(arguments).values() if isinstance(kind, type) and hasattr(kind, "_fields")]


@pytest.mark.parametrize("kind", TUPLES)
def test_no_field_has_the_name_of_an_attribute_of_tritons_tuples(kind):
    taken = {*dir(tl.tuple([])), *dir(())}
    assert not taken & set(kind._fields)
