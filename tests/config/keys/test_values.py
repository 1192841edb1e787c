import pytest
from pydantic import ValidationError

from satrap.config.keys.cluster import ClusterKeys
from satrap.config.keys.sections import EmbeddingKeys, TrainingKeys
from satrap.config.keys.values import as_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), (100, 100), ("2TiB", 2 << 40)],
)
def test_sizes(text: object, count: int) -> None:
    assert as_bytes(text) == count
    assert EmbeddingKeys.model_validate({"memory": text}).memory == count


@pytest.mark.parametrize("text", ["4GB", "GiB", "-1GiB", "", "4 G"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValidationError):
        EmbeddingKeys.model_validate({"memory": text})


def test_devices() -> None:
    for name in ("cpu", "cuda", "cuda:3"):
        assert TrainingKeys.model_validate({"device": name}).device == name
    with pytest.raises(ValidationError, match="should be cpu, cuda or cuda:N"):
        TrainingKeys.model_validate({"device": "gpu"})


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("metrics_port", [0, 65535], [-1, 65536]),
        ("workers", [1], [0]),
        ("loaders", [0], [-1]),
        ("addresses", [["h:1"], ["h:12345"]], [["h"], ["h:"], ["h:123456"], ["a b:1"]]),
    ],
)
def test_limits(key: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(ClusterKeys.model_validate({key: value}), key) == value
    for value in bad:
        with pytest.raises(ValidationError):
            ClusterKeys.model_validate({key: value})
