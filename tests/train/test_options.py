"""Options of the rows seen from the trainer and from a recipe: format, admission, learning-rate schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import satrap
from satrap.errors import ConfigError
from satrap.launch.build import make_trainer as trainer_of
from satrap.train import Trainer
from tests.config.recipes import loaded, refused
from tests.train.one_trainer import FEATURES, all_rows, make_trainer
from tests.train.plain import Batches, make_batches


def is_bfloat16(rows: np.ndarray) -> bool:
    return not (rows.view(np.uint32) & 0xFFFF).any()


def dropped(trainer: Trainer) -> int:
    return sum(t.dropped for t in trainer.statistics().tables.values())


def test_rows_train_in_16_bits_and_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(embedding_dtype="bfloat16")
    before = {name: all_rows(trainer, name) for name in FEATURES}
    trainer.fit(Batches(make_batches(30)))
    trainer.save(str(tmp_path))
    again = Trainer.load(str(tmp_path), trainer.model)
    assert again.store.dtype == "bfloat16"
    for name in FEATURES:
        rows = all_rows(trainer, name)
        assert is_bfloat16(rows)
        assert np.abs(rows - before[name]).max() > 0.01
        np.testing.assert_array_equal(all_rows(again, name), rows)
    trainer.close()
    again.close()


def test_16_bit_rows_take_half_the_bytes_and_learn_nearly_the_same() -> None:
    trained = []
    for dtype in ("float32", "bfloat16"):
        trainer = make_trainer(embedding_dtype=dtype, embedding_optimizer=satrap.optim.SGD(lr=0.5))
        trainer.fit(Batches(make_batches(60)))
        trained.append((all_rows(trainer, "user"), trainer.exchange.shard.groups[0].row_bytes))
        trainer.close()
    (wide, wide_bytes), (narrow, narrow_bytes) = trained
    assert (wide_bytes, narrow_bytes) == (32, 16)
    assert 0 < np.abs(wide - narrow).max() < 0.05


def test_ids_below_the_count_get_no_row(tmp_path: Path) -> None:
    trainer = make_trainer(admission=satrap.store.Admission(min_count=3), mode="sync")
    batches = make_batches(2)
    trainer.fit(Batches(batches))
    assert trainer.statistics().rows == 0
    assert dropped(trainer) > 0
    trainer.fit(Batches(batches))
    assert trainer.statistics().rows > 0
    trainer.save(str(tmp_path))
    again = Trainer.load(str(tmp_path), trainer.model)
    assert again.store.admission == trainer.store.admission
    trainer.close()
    again.close()


def test_rows_go_when_memory_is_full_and_a_saved_model_has_the_rest(tmp_path: Path) -> None:
    trainer = make_trainer(memory=200_000, eviction=satrap.store.Eviction("lru"))
    batches = make_batches(60, size=256)
    for number, batch in enumerate(batches):
        for column in batch.ids.values():
            column.values[:] += np.uint64(200 * number)
    trainer.fit(Batches(batches))
    counts = trainer.statistics().tables.values()
    assert sum(table.evicted for table in counts) > 500
    assert trainer.statistics().bytes <= 200_000
    trainer.save(str(tmp_path))
    again = Trainer.load(str(tmp_path), trainer.model)
    np.testing.assert_array_equal(all_rows(again, "user"), all_rows(trainer, "user"))
    trainer.close()
    again.close()


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_with_a_tier_training_is_that_with_enough_memory(tmp_path: Path, mode: str) -> None:
    arguments = {"memory": 450_000, "eviction": satrap.store.Eviction("lru")}
    tier = satrap.store.Tier(str(tmp_path), 1 << 18)
    trainers = make_trainer(mode=mode), make_trainer(mode=mode, **arguments, tier=tier)
    batches = make_batches(60, size=256)
    for number, batch in enumerate(batches):
        for column in batch.ids.values():
            column.values[:] += np.uint64(200 * (number % 30))
    for trainer in trainers:
        trainer.fit(Batches(batches))
    free, bound = trainers
    assert bound.statistics().tier.rows > 500
    assert bound.statistics().tier.prefetched > 0
    np.testing.assert_array_equal(all_rows(bound, "user"), all_rows(free, "user"))
    for mine, other in zip(free.model.parameters(), bound.model.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())
    for trainer in trainers:
        trainer.close()


def trained(count: int, schedule: satrap.optim.Schedule, mode: str) -> list[np.ndarray]:
    """Rows and weights after so many batches."""
    trainer = make_trainer(
        embedding_optimizer=satrap.optim.SGD(lr=0.5),
        dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        mode=mode,
        lr_schedule=schedule,
    )
    trainer.fit(Batches(make_batches(6)[:count]))
    after = [all_rows(trainer, "user"), *(p.detach().numpy().copy() for p in trainer.model.parameters())]
    trainer.close()
    return after


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_a_schedule_scales_rows_and_dense_weights_step_by_step(mode: str) -> None:
    """With a rate that is 0 from the fourth step on, six steps are three."""
    constant, dropping = satrap.optim.Constant(), satrap.optim.Staircase(every=3, gamma=1e-12)
    three, six = trained(3, constant, mode), trained(6, constant, mode)
    for mine, expected, further in zip(trained(6, dropping, mode), three, six, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-7)
        assert np.abs(further - expected).max() > 1e-3


def test_a_recipe_names_all_of_them(tmp_path: Path) -> None:
    recipe = loaded(
        tmp_path,
        "embedding.dtype=float16",
        "embedding.admission={min_count: 2, probability: 0.5, memory: 1MiB}",
        "embedding.memory=64MiB",
        "embedding.eviction={policy: ttl, ttl: 500}",
        "embedding.optimizer={name: ftrl, lr: 0.1, l1: 0.01, clip: 1.0}",
        "training.lr_schedule={name: cosine, steps: 100, warmup: 10}",
    )
    trainer = trainer_of(recipe, recipe.schema())
    assert trainer.embedding_optimizer == satrap.optim.FTRL(lr=0.1, l1=0.01, clip=1.0)
    assert trainer.store.dtype == "float16"
    assert trainer.store.admission == satrap.store.Admission(min_count=2, probability=0.5, memory=1 << 20)
    assert trainer.store.eviction == satrap.store.Eviction("ttl", ttl=500)
    assert trainer.store.memory == 64 << 20
    assert trainer.training.lr_schedule == satrap.optim.Cosine(steps=100, warmup=10)
    trainer.close()


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("embedding.dtype=float8", "embedding.dtype"),
        ("embedding.admission.min_count=300", "min_count"),
        ("embedding.admission.probability=0", "probability"),
        ("embedding.eviction={policy: fifo}", "embedding.eviction.policy"),
        ("embedding.eviction={policy: lru}", "policy lru needs embedding.memory"),
        ("embedding.eviction={policy: ttl}", "policy ttl needs ttl"),
        ("embedding.tier={path: /tmp, size: 1GiB}", "embedding.tier needs embedding.memory"),
        ("embedding.tier={path: '', size: 1GiB}", "a tier needs a path"),
        ("embedding.tier={path: /tmp, size: 0}", "embedding.tier.size"),
        ("embedding.eviction={policy: lfu, ttl: 5}", "policy lfu has no ttl"),
        ("embedding.eviction={policy: ttl, ttl: 0}", "embedding.eviction: ttl must be 1 to"),
        ("embedding.optimizer={name: sgd, lr: 0.1, nesterov: true}", "nesterov needs momentum"),
        ("training.lr_schedule={name: cosine}", "steps"),
        ("training.lr_schedule={name: cosine, steps: 0}", "steps must be >= 1"),
    ],
)
def test_impossible_options_of_a_recipe_name_the_key(tmp_path: Path, override: str, what: str) -> None:
    assert what in refused(tmp_path, override).what


def test_counts_that_are_no_power_of_two_are_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory must be a power of two") as caught:
        loaded(tmp_path, "embedding.admission={min_count: 2, memory: 1000}")
    assert "embedding.admission" in caught.value.where
