"""Training that issues lookups early ends with the bytes of `sync`."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.exchange.states import counts_of
from satrap.store import Admission, Eviction, TableSettings
from satrap.train import Checkpointing
from tests.support.interruptions import KillAt, KilledError, StopAt
from tests.support.trainers import Answer, alone, assert_same, contents, distributed, make_trainer
from tests.train.plain import Batches, make_batches

DATA = Batches([*make_batches(6, size=16, seed=0), *make_batches(1, size=3, seed=7)])


@pytest.mark.parametrize("lookahead", [1, 4, 30])
def test_results_are_those_of_sync_to_the_bit(lookahead: int) -> None:
    arguments = {"mode": "sync", "epochs": 3, "validation": Batches(make_batches(3, size=16, seed=5))}
    sync, early = alone(DATA, **arguments), alone(DATA, lookahead=lookahead, **arguments)
    assert_same(sync, early)
    assert early.result.metrics == sync.result.metrics
    assert early.result.staleness == sync.result.staleness == {0: 21}


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [1, 3])
def test_a_worker_of_shard_servers_ends_with_the_bytes_of_sync(shards: int) -> None:
    one = distributed(1, shards, lambda _: DATA, mode="sync", epochs=3)[0]
    early = distributed(1, shards, lambda _: DATA, mode="sync", lookahead=3, epochs=3)[0]
    assert_same(one, early)
    assert_same(one, alone(DATA, mode="sync", epochs=3))


@pytest.mark.parametrize("delta", [None, 2])
@pytest.mark.parametrize("after", [0, 5])
def test_a_killed_run_resumes_to_the_bit_whatever_its_lookahead(
    delta: int | None, after: int, tmp_path: Path
) -> None:
    # With deltas, only the first snapshot is full: the newest one is a delta, whenever it was written.
    plan = Checkpointing(str(tmp_path), every_steps=12 if delta else 6, delta_every_steps=delta)
    trainer = make_trainer(mode="sync", lookahead=3)
    with pytest.raises(KilledError):
        trainer.fit(DATA, epochs=2, checkpoint=plan, observers=[KillAt(11)])
    trainer.close()
    again = make_trainer(mode="sync", lookahead=after)
    result = again.fit(DATA, epochs=2, checkpoint=plan, resume=True)
    assert_same(Answer(again, result, contents(again)), alone(DATA, mode="sync", epochs=2))
    if after:
        trainer = make_trainer(mode="sync", lookahead=after)
        trainer.fit(DATA, epochs=2)
        assert counts_of(again.exchange.shard) == counts_of(trainer.exchange.shard)
        trainer.close()
    again.close()


@pytest.mark.parametrize("stop", [False, True], ids=["error", "request_stop"])
def test_a_fit_that_was_interrupted_can_be_followed_by_another(stop: bool) -> None:
    trainer = make_trainer(mode="sync", lookahead=3)
    end = StopAt(trainer, 5) if stop else KillAt(5)
    with pytest.raises(KeyboardInterrupt if stop else KilledError):
        trainer.fit(DATA, epochs=2, observers=[end])
    sync = make_trainer(mode="sync")
    sync.fit(DATA, steps=5 + stop)  # a stop takes effect after the step that follows
    one, other = (Answer(t, t.fit(DATA, epochs=1), contents(t)) for t in (trainer, sync))
    assert_same(one, other)
    trainer.close()
    sync.close()


def test_what_lookahead_does_not_go_with() -> None:
    with pytest.raises(ConfigError, match="eviction"):
        make_trainer(mode="sync", lookahead=1, eviction=Eviction("lru"), memory=1 << 20)
    with pytest.raises(ConfigError, match="admission"):
        make_trainer(mode="sync", lookahead=1, admission=Admission(probability=0.5))
    with pytest.raises(ConfigError, match=r"eviction cannot be combined .*\n.*table 'user'"):
        make_trainer(
            mode="sync", lookahead=1, tables={"user": TableSettings(memory=1 << 20, eviction=Eviction("lru"))}
        )
    with pytest.raises(ConfigError, match="mode sync, got mode hybrid"):
        make_trainer(mode="hybrid", lookahead=1)
    with pytest.raises(ConfigError, match=">= 0, got -1"):
        make_trainer(mode="sync", lookahead=-1)
