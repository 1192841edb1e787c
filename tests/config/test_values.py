import pytest
from pydantic import ValidationError

from satrap.config.keys import Embedding, Training
from satrap.config.values import as_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), (100, 100), ("2TiB", 2 << 40)],
)
def test_sizes(text: object, count: int) -> None:
    assert as_bytes(text) == count
    assert Embedding.model_validate({"memory": text}).memory == count


@pytest.mark.parametrize("text", ["4GB", "GiB", "-1GiB", "", "4 G"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValidationError):
        Embedding.model_validate({"memory": text})


def test_devices() -> None:
    for name in ("cpu", "cuda", "cuda:3"):
        assert Training.model_validate({"device": name}).device == name
    with pytest.raises(ValidationError, match="should be cpu, cuda or cuda:N"):
        Training.model_validate({"device": "gpu"})
