"""Each rule of a move is needed: without it, a check has something to say, or the run ends with an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.exchange.resharding.bucket_moves import Carried, Moves
from satrap.exchange.servers.client.exchange import ServersExchange
from satrap.exchange.servers.shard.recovery import STATE, Recovery
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.servers.shard.worker_registry import WorkerRegistry
from satrap.rpc.client.client import Client
from satrap.rpc.server.handler import Job
from satrap.rpc.server.turns import execute
from satrap.rpc.wire.frames import MessageKind
from satrap.store import Shard
from tests.sim.invariants import INVARIANTS
from tests.sim.stories import Story

Patch = pytest.MonkeyPatch
QUIET, SYNC = Story(1), Story(1, staleness=None)
BAD = Story(1, fault=0.15, crash=0.03)
LOSSY = Story.by_chance(10_046)
LATE = Story.by_chance(10_530)
RECONNECTED = Story.by_chance(10_034)
DEATHS = [*(Story.by_chance(10_000 + n) for n in (7, 23, 26)), Story(0, fault=0.15, deaths=((0, 20),))]


def a_shard_drops_rows_that_have_moved(patch: Patch) -> None:
    patch.setattr(Shard, "discard", lambda self, buckets: 0)


def rows_are_copied_before_the_map_changes(patch: Patch) -> None:
    patch.setattr(Moves, "_copy", lambda self, *_: Carried(0, 0))
    begin = Moves.__init__
    patch.setattr(
        Moves, "__init__", lambda self, *a, evicts, **k: begin(self, *a, evicts=True, **k)
    )  # where rows are evicted, they are not counted


def rows_are_counted_before_the_map_changes(patch: Patch) -> None:
    """Here half of them get lost."""
    copy = Moves._copy
    patch.setattr(Moves, "_copy", lambda self, old, map, buckets: copy(self, old, map, buckets[::2]))


def updates_go_to_the_new_owners(patch: Patch) -> None:
    send = ServersExchange._send_update

    def as_looked_up(self: Any, lookup: Any, *rest: Any) -> None:
        lookup.shard_map = self.map
        send(self, lookup, *rest)

    patch.setattr(ServersExchange, "_send_update", as_looked_up)


def an_update_is_of_the_lookup_with_its_ids_in_its_tables(patch: Patch) -> None:
    def same(found: Any, updated: Any) -> bool:
        pairs = zip(found, updated, strict=True)
        return len(found) == len(updated) and all(np.array_equal(a.ids, b.ids) for (a, _), b in pairs)

    patch.setattr("satrap.exchange.servers.shard.slot_cache._same", same)


def answers_are_awaited_before_a_move(patch: Patch) -> None:
    def flush(self: Client) -> None:
        self.ask_all(MessageKind.FLUSH)
        self.raise_error()

    patch.setattr(Client, "flush", flush)


def all_workers_take_the_map(patch: Patch) -> None:
    adopt = Moves.adopt

    def only_rank_0(self: Any, map: Any) -> None:
        if self._hello(map.members[0], map)["rank"] == 0:
            adopt(self, map)

    patch.setattr(Moves, "adopt", only_rank_0)


def a_shard_refuses_the_map_before(patch: Patch) -> None:
    """One worker asks by it, and nobody looks at the maps themselves."""
    all_workers_take_the_map(patch)
    patch.setattr(Service, "epoch", property(lambda self: None))
    patch.setattr(Service, "_check", lambda self, session, header: None)
    patch.setattr("tests.sim.cluster.INVARIANTS", INVARIANTS[1:])


def maps_are_in_the_journal(patch: Patch) -> None:
    prepare = Service.prepare

    def prepared(self: Service, session: Any, header: Any, parts: Any) -> Any:
        work = prepare(self, session, header, parts)
        return type(work)(list) if header.kind == MessageKind.MAP and self.repeating else work

    patch.setattr(Service, "prepare", prepared)


def a_new_shard_goes_on_at_the_step_of_the_others(patch: Patch) -> None:
    join = Moves.join

    def at_step_0(self: Any, map: Any, addresses: Any) -> None:
        hello, self._hello = self._hello, lambda shard, map: hello(shard, map) | {"completed": 0}
        join(self, map, addresses)
        self._hello = hello

    patch.setattr(Moves, "join", at_step_0)


def workers_of_older_generations_are_refused(patch: Patch) -> None:
    def check(self: WorkerRegistry, session: Any) -> None:
        self.formats.setdefault(session.client, 0)

    patch.setattr(WorkerRegistry, "check", check)


def a_new_generation_finds_shards_empty(patch: Patch) -> None:
    renewed_by = WorkerRegistry.renewed_by

    def renewed(self: WorkerRegistry, worker: Any, *, repeating: bool) -> bool:
        found = renewed_by(self, worker, repeating=repeating)
        self.generation = worker.id.generation
        return found and worker.id.generation == 0

    patch.setattr(WorkerRegistry, "renewed_by", renewed)


def a_goodbye_of_the_generation_before_is_not_repeated(patch: Patch) -> None:
    def repeat(self: Recovery, header: Any, parts: Any, sessions: Any) -> None:
        if header.kind == STATE:
            before(self, header, parts, sessions)
            return
        job = Job(sessions.recovered(header), header, parts, 0, 0.0)
        sessions.finished(job, execute(self._service, job))

    before = Recovery._repeat
    patch.setattr(Recovery, "_repeat", repeat)


RULES: list[tuple[Callable[[Patch], None], list[Story], str | None]] = [
    (a_shard_drops_rows_that_have_moved, [QUIET], "each row is at its owner"),
    (rows_are_copied_before_the_map_changes, [QUIET], "no row is lost"),
    (rows_are_counted_before_the_map_changes, [QUIET], "rows did not reach their new shards"),
    (updates_go_to_the_new_owners, [QUIET], None),
    (an_update_is_of_the_lookup_with_its_ids_in_its_tables, [LOSSY], "each update is applied once"),
    (answers_are_awaited_before_a_move, [RECONNECTED], None),
    (all_workers_take_the_map, [QUIET], "epochs agree"),
    (a_shard_refuses_the_map_before, [QUIET], None),
    (maps_are_in_the_journal, [BAD], "the shard is at epoch 1"),
    (a_new_shard_goes_on_at_the_step_of_the_others, [SYNC], "came while step 0 is open"),
    (workers_of_older_generations_are_refused, DEATHS, None),
    (a_new_generation_finds_shards_empty, DEATHS[-1:], "no row is invented"),
    (a_goodbye_of_the_generation_before_is_not_repeated, [LATE], "cannot be repeated"),
]


def played(stories: list[Story], place: Path) -> None:
    for story in stories:
        story.play(place / str(story.seed))


@pytest.mark.parametrize(("rule", "stories", "what"), RULES, ids=[rule.__name__ for rule, *_ in RULES])
def test_without_a_rule_a_check_fails_or_the_run_ends(
    rule: Callable[[Patch], None], stories: list[Story], what: str | None, tmp_path: Path, monkeypatch: Patch
) -> None:
    rule(monkeypatch)
    with pytest.raises(Exception, match=what):
        played(stories, tmp_path)


SLOW = (BAD, LATE, DEATHS[1], DEATHS[2])
"""Like one of the others: bad networks are in `LOSSY`, and a worker dies in each of `DEATHS`."""


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, marks=pytest.mark.slow if story in SLOW else ())
        for story in (QUIET, SYNC, BAD, LOSSY, RECONNECTED, LATE, *DEATHS)
    ],
)
def test_with_all_rules_the_same_stories_end_well(story: Story, tmp_path: Path) -> None:
    played([story], tmp_path)
