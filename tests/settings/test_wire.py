import pytest

from satrap.errors import ConfigError
from satrap.settings.wire import Wire


def test_unknown_formats_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Wire: forward 'bfloat16' is unknown"):
        Wire(forward="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"use one of int8, bfloat16, float16, float32"):
        Wire(backward="int4")  # type: ignore[arg-type]


def test_a_rank_is_a_positive_number() -> None:
    with pytest.raises(ConfigError, match="wire: dense_rank must be >= 1, got 0"):
        Wire(dense="powersgd", dense_rank=0)


@pytest.mark.parametrize(("dense", "compresses"), [("int8", False), ("float32", False), ("powersgd", True)])
def test_a_compression_is_not_a_format(dense: str, compresses: bool) -> None:
    assert Wire(dense=dense).compresses == compresses  # type: ignore[arg-type]
