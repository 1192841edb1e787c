import pydantic
import pytest

from satrap.config.keys.serving import ServingKeys


def test_sizes_and_times_have_units() -> None:
    read = ServingKeys.model_validate(
        {"keep_memory": "1GiB", "max_bytes": "2MiB", "max_staleness": "2m", "keep": 0}
    )
    tiered = ServingKeys.model_validate({"memory": "4GiB", "tier": {"path": "/mnt", "size": "1TiB"}})
    assert tiered.tier is not None
    assert (tiered.memory, tiered.tier.size) == (4 << 30, 1 << 40)
    assert ServingKeys.model_validate({"shards": ["10.0.0.1:7000"]}).shards == ["10.0.0.1:7000"]
    assert (read.keep_memory, read.max_bytes, read.max_staleness, read.keep) == (1 << 30, 2 << 20, 120.0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "float16"},
        {"keep": -1},
        {"keep_memory": 0},
        {"deadline": 0},
        {"max_item": 1},
        {"tier": {"path": "/mnt"}},
        {"shards": ["nowhere"]},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        ServingKeys.model_validate(wrong)
