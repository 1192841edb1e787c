"""What is decided about the roles of a run, in every case and without a process."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import CheckpointError, ConfigError, DataError, ExchangeError, SatrapError, TrainingError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.actions import ChangeWorkers, MakeRoom, MakeShardRoom, ReplyToRequest
from satrap.launch.cluster.control_requests import ControlRequest
from satrap.launch.cluster.supervisor import (
    LOADER_RESTARTS,
    READY_SECONDS,
    SETTLE_SECONDS,
    Action,
    FindSnapshot,
    Finish,
    Say,
    StartServer,
    StartWorkers,
    StopRole,
    Supervisor,
    Tell,
)
from satrap.launch.cluster.worker import FAILED, INTERRUPTED, PEER_LOST
from satrap.launch.cluster.worker_events import Finished, RowsMoved, StepTaken, Trained
from satrap.launch.folder.outcome import InterruptedRunError
from satrap.launch.launchers.launcher import Ended, Launched, Logged, Stop
from satrap.runtime.events import Event, Failed, Notice, Ready, Recovering
from satrap.train import Progress, Result
from satrap.train.resharding.requests import ReshardResult

KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Rules:
    """What a run has, and how it is kept alive."""

    shards: int = 2
    loaders: int = 0
    embedding_workers: int = 0
    workers: int = 2
    restarts: int = 3
    grace: float = 5.0
    journal: bool = False
    snapshots: bool = False


RULES = Rules()
RESULT = Result({"auc": 0.7}, (), 9, 90, 1.0, 90.0, 0, "epochs")
TRAINED = Trained(RESULT, {"auc": 0.6})


class Play:
    """A run whose roles are names: it carries out at once what the supervisor decides, and notes it.

    Args:
        rules: of the run.
        newest: step of the newest snapshot.
        prompt: servers are ready as soon as they are started.
    """

    def __init__(self, rules: Rules, *, newest: int | None = None, prompt: bool = True) -> None:
        self.rules, self.newest, self.prompt = rules, newest, prompt
        values = asdict(rules)
        journal, snapshots = values.pop("journal"), values.pop("snapshots")
        keys = ClusterKeys(exchange="servers", **values)
        self.supervisor = Supervisor(keys, journal=journal, snapshots=snapshots)
        self.now, self.interrupts = 0.0, 0
        self.live: dict[str, int] = {}
        self.pids = 100
        self.asked: dict[str, Stop] = {}
        self.moves: list[str] = []  # servers that listen elsewhere when they come back
        self.workers = rules.workers
        self.full: SatrapError | None = None  # why there is no room for more workers
        self.answers: list[Any] = []
        self.slow = ""  # takes its time to end when it is killed
        self.servers: list[StartServer] = []
        self.groups: list[StartWorkers] = []
        self.stops: list[StopRole] = []
        self.said: list[str] = []
        self.told: list[Event] = []
        self.over: Finish | None = None
        self.wait(0.5)

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            assert self.over is None
            match action:
                case StartServer(name, address):
                    self.servers.append(action)
                    kept = "" if name in self.moves else address
                    self.begin(name, Ready(kept or f"127.0.0.1:{self.pids}"))
                case MakeRoom() | MakeShardRoom() | ChangeWorkers() | ReplyToRequest():
                    self.about_workers(action)
                case StartWorkers():
                    self.groups.append(action)
                    for number in range(self.workers):
                        self.begin(f"worker {number}")
                case StopRole(name, how):
                    assert name in self.live
                    self.stops.append(action)
                    self.asked[name] = how
                case FindSnapshot():
                    self.do(self.supervisor.restart_workers(self.newest))
                case Say() | Tell():
                    self.hear_of(action)
                case Finish():
                    self.finish(action)

    def hear_of(self, action: Say | Tell) -> None:
        if isinstance(action, Say):
            self.said.append(action.text)
        else:
            self.told.append(action.event)

    def about_workers(self, action: MakeRoom | MakeShardRoom | ChangeWorkers | ReplyToRequest) -> None:
        match action:
            case MakeRoom():
                self.do(self.supervisor.has_room(self.full))
            case MakeShardRoom():
                self.do(self.supervisor.shard_has_room(self.full))
            case ChangeWorkers(workers):
                self.workers = workers
            case ReplyToRequest(_, answer):
                self.answers.append(answer)

    def finish(self, action: Finish) -> None:
        how = Stop.KILL if action.error else Stop.RELEASE
        assert all(self.asked.get(name) is how for name in self.live)
        self.over = action

    def begin(self, name: str, ready: Event | None = None) -> None:
        assert name not in self.live
        self.asked.pop(name, None)
        self.pids += 1
        self.live[name] = self.pids
        self.hear(name, Launched(f"process {self.pids}"))
        if ready and self.prompt:
            self.hear(name, ready)

    def hear(self, name: str, event: Event) -> None:
        self.do(self.supervisor.heard(name, event))

    def end(self, name: str, code: int = KILLED) -> None:
        del self.live[name]
        self.hear(name, Ended(code))

    def decide(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for name, how in self.asked.items() if self.over is None else ():
            if name in self.live and how is Stop.KILL and name != self.slow:
                self.end(name)
        self.do(self.supervisor.decide(self.now, self.interrupts))

    def wait(self, seconds: float = 0.2) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.1)):
            self.decide(0.1)

    def settle(self) -> None:
        self.wait(SETTLE_SECONDS + 0.2)

    def step(self, number: int) -> None:
        self.hear("worker 0", StepTaken(Progress(step=number)))

    @property
    def error(self) -> BaseException:
        assert self.over is not None
        assert self.over.error is not None
        return self.over.error

    def failed(self) -> SatrapError:
        assert isinstance(self.error, SatrapError)
        return self.error


def test_servers_start_kind_by_kind_and_workers_once_all_are_ready() -> None:
    play = Play(replace(RULES, loaders=1, embedding_workers=1), prompt=False)
    assert list(play.live) == ["shard 0", "shard 1"]
    play.hear("shard 1", Ready("h:1"))
    play.wait()
    assert list(play.live) == ["shard 0", "shard 1"]
    for name, expected in (
        ("shard 0", "loader 0"),
        ("loader 0", "embedding worker 0"),
        ("embedding worker 0", "worker 1"),
    ):
        assert expected not in play.live
        play.hear(name, Ready(f"{name}:1"))
        play.wait()
        assert list(play.live)[-1] == expected
    assert play.groups == [StartWorkers(0, None)]
    assert play.supervisor.addresses("shard") == ("shard 0:1", "h:1")
    assert play.supervisor.addresses("embedding worker") == ("embedding worker 0:1",)


def test_a_run_ends_when_its_workers_have_and_its_servers_are_released() -> None:
    play = Play(replace(RULES, loaders=1))
    play.hear("worker 0", TRAINED)
    play.end("worker 0", 0)
    play.settle()
    assert play.over is None
    play.end("worker 1", 0)
    play.decide()
    assert play.over == Finish(None)
    assert play.stops == [StopRole(name, Stop.RELEASE) for name in ("shard 0", "shard 1", "loader 0")]
    assert play.supervisor.trained == TRAINED
    assert play.supervisor.restarts == play.supervisor.repeated == 0
    assert play.supervisor.decide(play.now, 2) == []


def test_what_roles_report_reaches_user_and_observers() -> None:
    play = Play(RULES)
    play.hear("shard 1", Logged("hello"))
    play.hear("shard 1", Recovering("snapshot 3"))
    play.hear("worker 0", Notice("note"))
    assert play.said == ["[shard 1] hello", "[shard 1] lost; restarting from snapshot 3", "note"]
    play.step(3)
    play.hear("worker 0", Finished(RESULT))
    assert play.told == [StepTaken(Progress(step=3)), Finished(RESULT)]


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("shard 1", "the rows on this shard are lost"),
        ("worker 0", "the other workers cannot continue without this worker"),
        ("embedding worker 0", "its workers get no more rows"),
    ],
)
def test_a_death_ends_a_run_that_has_nothing_to_go_on_from(name: str, consequence: str) -> None:
    play = Play(replace(RULES, embedding_workers=1))
    play.hear(name, Logged("one"))
    play.hear(name, Logged(""))
    play.hear(name, Logged("two"))
    pid = play.live[name]
    play.end(name)
    play.settle()
    error = play.failed()
    assert isinstance(error, ExchangeError)
    assert error.what == f"{name} was killed by SIGKILL"
    assert error.where == f"process {pid}; last lines: one | two"
    assert consequence in error.why
    assert "with checkpoint.every_steps a run continues" in error.fix
    assert {stop.name for stop in play.stops} == set(play.live)
    assert {stop.how for stop in play.stops} == {Stop.KILL}


@pytest.mark.parametrize("newest", [40, None])
def test_a_killed_worker_starts_all_again_from_the_newest_snapshot(newest: int | None) -> None:
    play = Play(replace(RULES, snapshots=True), newest=newest)
    shards = {name: pid for name, pid in play.live.items() if name.startswith("shard")}
    play.step(55)
    pid = play.live["worker 1"]
    play.end("worker 1")
    play.settle()
    play.wait()
    assert play.groups == [StartWorkers(0), StartWorkers(1, newest)]
    assert play.stops == [StopRole("worker 0", Stop.KILL)]
    assert {name: play.live[name] for name in shards} == shards
    steps = 55 - (newest or 0)
    origin = f"the snapshot of step {newest}" if newest else "the beginning (no snapshot yet)"
    assert play.said == [
        f"worker 1 was killed by SIGKILL (process {pid}): all workers restart from {origin}; about "
        f"{steps} steps are repeated (restart 1 of 3)"
    ]
    assert (play.supervisor.restarts, play.supervisor.repeated) == (1, steps)
    play.hear("worker 0", TRAINED)
    play.end("worker 0", 0)
    play.end("worker 1", 0)
    play.decide()
    assert play.over == Finish(None)


def test_no_worker_starts_before_all_have_ended() -> None:
    play = Play(replace(RULES, snapshots=True), newest=4)
    play.slow = "worker 0"
    play.end("worker 1")
    play.settle()
    play.wait(3)
    assert play.groups == [StartWorkers(0)]
    play.end("worker 0")
    play.wait()
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]


def test_what_workers_did_before_they_were_lost_counts_no_more() -> None:
    play = Play(replace(RULES, snapshots=True), newest=40)
    play.step(30)  # told a while before the snapshot
    play.hear("worker 0", TRAINED)
    play.end("worker 0", 0)
    play.end("worker 1")
    play.settle()
    play.wait()
    assert play.groups[-1] == StartWorkers(1, 40)
    assert play.supervisor.repeated == 0
    for name in ("worker 0", "worker 1"):
        play.end(name, INTERRUPTED)
    play.decide()
    assert isinstance(play.error, KeyboardInterrupt)


def test_workers_wait_for_a_shard_that_comes_back_from_its_journal() -> None:
    play = Play(replace(RULES, journal=True))
    address = play.supervisor.addresses("shard")[1]
    play.end("shard 1")
    play.wait()
    assert play.servers[-1] == StartServer("shard 1", address)
    assert play.said == ["[shard 1] was killed by SIGKILL; training waits for it (restart 1 of 3)"]
    play.settle()
    assert play.over is None
    assert play.groups == [StartWorkers(0)]
    assert play.stops == []


@pytest.mark.parametrize("code", [0, 1, 3])
@pytest.mark.parametrize(("journal", "snapshots"), [(True, False), (False, True)])
def test_a_shard_that_ended_by_itself_does_not_come_back(code: int, journal: bool, snapshots: bool) -> None:
    play = Play(replace(RULES, journal=journal, snapshots=snapshots), newest=4)
    play.end("shard 0", code)
    play.settle()
    assert play.failed().what == f"shard 0 ended with exit code {code}"
    assert len(play.servers) == 2


@pytest.mark.parametrize(("journal", "code"), [(False, KILLED), (True, 1)])
def test_a_shard_without_its_rows_reads_the_snapshot_with_all_workers(journal: bool, code: int) -> None:
    """It was killed and has no journal, or its journal brought it back no more."""
    play = Play(replace(RULES, journal=journal, snapshots=True), newest=4)
    address = play.supervisor.addresses("shard")[0]
    play.end("shard 0", code)
    play.settle()
    play.wait()
    assert play.servers[2:] == [StartServer("shard 0", address, fresh=True)]
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]
    assert play.supervisor.restarts == 1


@pytest.mark.parametrize("journal", [False, True])
def test_workers_get_the_new_address_of_a_shard_on_another_node(journal: bool) -> None:
    """Without a journal they wait for it; with one it comes back while they wait, and they start again."""
    play = Play(replace(RULES, journal=journal, snapshots=True), newest=4)
    former = play.supervisor.addresses("shard")[0]
    play.moves = ["shard 0"]
    play.end("shard 0")
    play.settle()
    play.settle()
    play.wait()
    assert [(s.name, s.address, s.fresh) for s in play.servers[2:]] == [("shard 0", former, not journal)]
    assert play.supervisor.addresses("shard")[0] != former
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]
    assert play.supervisor.restarts == 1 + journal
    play.wait(5)
    assert play.over is None
    assert len(play.groups) == 2


def test_workers_start_once_a_lost_shard_is_ready_again() -> None:
    play = Play(replace(RULES, snapshots=True), newest=4)
    play.prompt = False
    play.end("shard 0")
    play.settle()
    play.wait(READY_SECONDS - 2)
    assert play.groups == [StartWorkers(0)]
    play.hear("shard 0", Ready("h:9"))
    play.wait()
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]
    play.end("shard 1")
    play.settle()
    play.wait(READY_SECONDS + 2)
    assert play.failed().what == "shard 1 was not ready after 120 s"


def test_ctrl_c_while_a_lost_shard_starts_again() -> None:
    play = Play(replace(RULES, snapshots=True), newest=4)
    play.prompt = False
    play.end("shard 0")
    play.settle()
    play.interrupts = 1
    play.wait()
    assert "the state since the newest snapshot is lost" in str(play.error)


@pytest.mark.parametrize(
    ("name", "embedding_workers", "snapshots"),
    [("shard 0", 1, True), ("shard 0", 0, False), ("loader 0", 0, False), ("loader 0", 1, False)],
)
def test_those_who_cannot_learn_a_new_address_end_the_run(
    name: str, embedding_workers: int, snapshots: bool
) -> None:
    rules = replace(RULES, journal=True, loaders=1, embedding_workers=embedding_workers, snapshots=snapshots)
    play = Play(rules, newest=4)
    play.moves = [name]
    play.end(name)
    play.settle()
    play.settle()
    assert play.failed().what.startswith(f"{name} came back at another address, 127.0.0.1:")


def test_a_loader_on_another_node_is_found_after_a_restart_of_the_workers() -> None:
    play = Play(replace(RULES, loaders=1, embedding_workers=1, snapshots=True), newest=4)
    play.moves = ["loader 0"]
    play.end("loader 0")
    play.settle()
    play.settle()
    play.wait()
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]
    assert play.over is None


def test_several_deaths_at_once_cost_one_restart() -> None:
    play = Play(replace(RULES, journal=True, snapshots=True, loaders=1), newest=4)
    play.end("worker 0")
    play.wait()
    play.end("shard 1")
    play.end("shard 0")
    play.end("loader 0")
    play.wait()
    assert len(play.servers) == 3  # nothing is started again before it is clear who died
    play.settle()
    play.wait()
    assert [(s.name, s.fresh) for s in play.servers[3:]] == [
        ("shard 0", True),
        ("shard 1", True),
        ("loader 0", False),
    ]
    assert play.said[0].startswith("shard 0 was killed by SIGKILL (process 101): all workers restart")
    assert play.supervisor.restarts == 1


@pytest.mark.parametrize("name", ["worker 1", "shard 1"])
def test_no_more_restarts_than_allowed(name: str) -> None:
    play = Play(replace(RULES, snapshots=True, journal=name == "shard 1"), newest=4)
    for _ in range(3):
        play.end(name)
        play.settle()
        play.wait()
        assert play.over is None
    play.end(name)
    play.settle()
    assert play.failed().what == f"{name} was killed by SIGKILL"
    assert play.failed().why == "processes were already restarted 3 times, the limit of cluster.restarts"


@pytest.mark.parametrize("code", [KILLED, 0, 1])
def test_loaders_are_started_again_so_often(code: int) -> None:
    play = Play(replace(RULES, loaders=2, restarts=0))
    address = play.supervisor.addresses("loader")[1]
    for number in range(LOADER_RESTARTS):
        pid = play.live["loader 1"]
        play.end("loader 1", code)
        play.settle()
        assert play.servers[-1] == StartServer("loader 1", address)
        assert f"(process {pid}; no log lines): restarting it" in play.said[-1]
        assert f"(restart {number + 1} of {LOADER_RESTARTS})" in play.said[-1]
    assert play.groups == [StartWorkers(0)]
    play.end("loader 0", code)
    play.settle()
    assert play.failed().what.startswith("loader 0 ")
    assert play.failed().why == "its workers get no more batches"


def fail(play: Play, name: str, error: SatrapError, code: int) -> None:
    play.hear(name, Failed(error))
    play.end(name, code)


def test_the_culprit_is_named_not_those_that_lost_it() -> None:
    for names in (("worker 0", "worker 1"), ("worker 1", "worker 0")):
        play = Play(RULES)
        for name in names:
            play.wait()
            if name == "worker 0":
                fail(play, name, ExchangeError("lost another worker"), PEER_LOST)
            else:
                play.end(name)
        play.settle()
        assert play.failed().what == "worker 1 was killed by SIGKILL"


def test_of_those_who_say_why_the_first_is_believed() -> None:
    play = Play(RULES)
    fail(play, "worker 1", ExchangeError("shard 0 at h:1 has not answered"), PEER_LOST)
    fail(play, "worker 0", ExchangeError("lost another worker"), PEER_LOST)
    play.settle()
    assert play.failed().what == "shard 0 at h:1 has not answered"


@pytest.mark.parametrize("code", [FAILED, KILLED])
@pytest.mark.parametrize("error", [DataError("bad row", where="a.csv"), TrainingError("loss is NaN")])
def test_what_would_happen_again_ends_the_run(error: SatrapError, code: int) -> None:
    play = Play(replace(RULES, snapshots=True, journal=True), newest=4)
    fail(play, "worker 1", error, code)
    fail(play, "worker 0", ExchangeError("lost another worker"), PEER_LOST)
    play.settle()
    assert play.error is error


@pytest.mark.parametrize("code", [0, FAILED, PEER_LOST])
def test_a_worker_that_ends_without_a_word_is_not_started_again(code: int) -> None:
    play = Play(replace(RULES, snapshots=True), newest=4)
    play.end("worker 0", INTERRUPTED)
    play.end("worker 1", code)
    play.settle()
    if code:
        assert play.failed().what == f"worker 1 ended with exit code {code}"
    else:
        assert isinstance(play.error, KeyboardInterrupt)


def test_workers_that_lost_a_peer_start_again() -> None:
    play = Play(replace(RULES, snapshots=True), newest=4)
    fail(play, "worker 1", ExchangeError("the connection broke", where="shard 0; here"), PEER_LOST)
    play.settle()
    play.wait()
    assert play.said[0].startswith("the connection broke (shard 0): all workers restart")
    play.end("worker 1")  # what the one before has said is forgotten
    play.settle()
    play.wait()
    assert play.said[1].startswith("worker 1 was killed by SIGKILL")


@pytest.mark.parametrize("journal", [False, True])
def test_a_killed_embedding_worker_starts_again_with_all_workers(journal: bool) -> None:
    play = Play(replace(RULES, embedding_workers=2, snapshots=True, journal=journal), newest=4)
    servers = {name: pid for name, pid in play.live.items() if not name.startswith("worker")}
    address = play.supervisor.addresses("embedding worker")
    play.end("embedding worker 0")
    fail(play, "worker 1", ExchangeError("embedding worker 0 is gone"), PEER_LOST)
    play.settle()
    play.wait()
    assert play.said[0].startswith("embedding worker 0 was killed by SIGKILL")
    assert play.servers[4:] == [StartServer("embedding worker 0", address[0])]
    assert play.groups == [StartWorkers(0), StartWorkers(1, 4)]
    again = {name: pid for name, pid in play.live.items() if name in servers and pid != servers[name]}
    assert list(again) == ["embedding worker 0"]
    assert play.supervisor.addresses("embedding worker") == address


def test_an_embedding_worker_that_ended_by_itself_does_not_come_back() -> None:
    play = Play(replace(RULES, embedding_workers=1, snapshots=True), newest=4)
    play.end("embedding worker 0", 1)
    play.settle()
    error = play.failed()
    assert error.what == "embedding worker 0 ended with exit code 1"
    assert "every_steps" not in error.fix
    assert error.fix == "see the last log lines of embedding worker 0 above"


def test_a_shard_that_was_never_ready_lost_no_rows_and_its_own_error_ends_the_run() -> None:
    """A metrics port in use: no rows are lost, and no memory was short."""
    play = Play(RULES, prompt=False)
    name = next(iter(play.live))
    play.end(name, 1)
    play.settle()
    error = play.failed()
    assert (error.what, error.why) == (
        f"{name} ended with exit code 1",
        f"training cannot start without {name}",
    )
    assert "memory" not in error.fix
    play, mistake = Play(RULES, prompt=False), ConfigError("the metrics endpoint cannot listen on h:1")
    play.hear(name, Failed(mistake))
    play.end(name, 2)
    play.settle()
    assert play.failed() is mistake


def test_one_ctrl_c_lets_the_workers_save() -> None:
    play = Play(RULES)
    play.interrupts = 1
    play.wait()
    assert play.stops == [StopRole(f"worker {i}", Stop.SAVE) for i in range(2)]
    assert play.said == ["saving after this step; Ctrl-C again to kill"]
    play.wait(4)
    play.hear("worker 0", replace(TRAINED, result=replace(RESULT, stopped="stopped")))
    play.end("worker 0", 0)
    play.end("worker 1", 0)
    play.decide()
    assert play.over == Finish(None)


def test_a_second_ctrl_c_kills_at_once() -> None:
    play = Play(RULES)
    play.interrupts = 1
    play.wait()
    play.interrupts = 2
    play.decide()
    assert isinstance(play.error, InterruptedRunError)
    assert "interrupted twice: all processes were killed" in str(play.error)


def test_workers_that_do_not_save_within_their_grace_are_killed() -> None:
    play = Play(RULES)
    play.interrupts = 1
    play.wait(4.9)
    assert play.over is None
    play.wait(0.5)
    assert isinstance(play.error, InterruptedRunError)
    assert "had not stopped after 5 s and were killed" in play.error.what
    assert play.error.fix == "raise cluster.grace"


def test_what_dies_while_workers_save_does_not_start_again() -> None:
    for name in ("worker 1", "shard 0", "loader 0"):
        play = Play(replace(RULES, loaders=1, snapshots=True), newest=4)
        play.interrupts = 1
        play.wait()
        play.end(name)
        play.settle()
        assert play.failed().what == f"{name} was killed by SIGKILL"


def test_a_shard_with_a_journal_comes_back_while_workers_save() -> None:
    play = Play(replace(RULES, journal=True))
    play.interrupts = 1
    play.wait()
    play.end("shard 0")
    play.settle()
    assert play.over is None
    assert len(play.servers) == 3


def test_workers_that_were_interrupted_are_not_lost() -> None:
    play = Play(RULES)
    play.interrupts = 1
    play.wait()
    play.end("worker 0", INTERRUPTED)
    play.settle()
    assert play.over is None
    play.end("worker 1", INTERRUPTED)
    play.decide()
    assert isinstance(play.error, KeyboardInterrupt)
    play = Play(RULES)
    kept = InterruptedRunError("interrupted after step 3")
    fail(play, "worker 0", kept, FAILED)
    play.end("worker 1", INTERRUPTED)
    play.decide()
    assert play.error is kept


def test_ctrl_c_before_the_workers_have_started() -> None:
    play = Play(RULES, prompt=False)
    play.interrupts = 1
    play.decide()
    assert isinstance(play.error, KeyboardInterrupt)
    assert play.asked == {"shard 0": Stop.KILL, "shard 1": Stop.KILL}


def test_a_server_that_is_not_ready_in_time_is_named() -> None:
    play = Play(replace(RULES, loaders=1), prompt=False)
    play.hear("shard 0", Ready("h:1"))
    play.hear("shard 1", Logged("reading"))
    play.decide(READY_SECONDS - 1)
    play.hear("shard 1", Ready("h:2"))
    play.wait()
    play.hear("loader 0", Logged("reading"))
    play.decide(READY_SECONDS - 1)
    assert play.over is None
    play.decide(2)
    assert play.failed().what == "loader 0 was not ready after 120 s"
    assert play.failed().where == "process 103; last lines: reading"


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("name", ["shard 0", "loader 0"])
def test_a_server_that_is_killed_while_others_start_is_started_again(name: str, journal: bool) -> None:
    play = Play(replace(RULES, loaders=2, restarts=LOADER_RESTARTS, journal=journal), prompt=False)
    play.hear("shard 0", Ready("h:0"))
    play.hear("shard 1", Ready("h:1"))
    play.wait()
    play.hear("loader 1", Ready("h:2"))
    for _ in range(LOADER_RESTARTS):
        play.end(name)
        play.settle()
        assert play.servers[-1] == StartServer(name, "h:0" if name == "shard 0" else "")
        play.hear("loader 0", Ready("h:3")) if name == "shard 0" else None
        play.wait()
        assert play.groups == []  # it was ready before, but is not yet again
    play.end(name)
    play.settle()
    assert play.failed().what == f"{name} was killed by SIGKILL"


def test_a_shard_that_is_killed_before_it_is_ready_is_started_again() -> None:
    play = Play(RULES, prompt=False)
    play.hear("shard 0", Ready("h:0"))
    play.end("shard 1")
    play.settle()
    assert play.servers[-1] == StartServer("shard 1", "")
    assert play.said == ["[shard 1] was killed by SIGKILL; training waits for it (restart 1 of 3)"]
    play.hear("shard 1", Ready("h:1"))
    play.wait()
    assert play.groups == [StartWorkers(0)]


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("name", ["shard 0", "loader 0"])
def test_a_server_that_ends_by_itself_while_others_start_is_named(name: str, code: int) -> None:
    play = Play(replace(RULES, loaders=1, journal=True, snapshots=True), prompt=False)
    play.hear("shard 0", Ready("h:1"))
    play.hear("shard 1", Ready("h:2"))
    play.wait()
    play.end(name, code)
    play.settle()
    assert play.failed().what == f"{name} ended with exit code {code}"
    assert play.groups == []


Deed = Callable[[Play, Any], None]


def some_role(play: Play, draw: Any) -> str | None:
    return draw(st.sampled_from(sorted(play.live))) if play.live else None


def dies(play: Play, draw: Any) -> None:
    if (name := some_role(play, draw)) is not None:
        play.end(name, draw(st.sampled_from([KILLED, -signal.SIGSEGV, 0, 1, 2, PEER_LOST, INTERRUPTED])))


def speaks(play: Play, draw: Any) -> None:
    if (name := some_role(play, draw)) is not None:
        errors = st.sampled_from([DataError("bad"), ExchangeError("lost"), InterruptedRunError("kept")])
        play.hear(name, draw(st.sampled_from([TRAINED, Failed(draw(errors)), Logged("x"), Recovering("y")])))


def is_ready(play: Play, draw: Any) -> None:
    if (name := some_role(play, draw)) is not None and not name.startswith("worker"):
        play.hear(name, Ready(f"{name}:1"))


def steps(play: Play, draw: Any) -> None:
    if "worker 0" in play.live:
        play.step(draw(st.integers(0, 100)))


def moves(play: Play, draw: Any) -> None:
    play.moves = [*play.moves, draw(st.sampled_from(["shard 0", "shard 1", "loader 0"]))]


def is_interrupted(play: Play, _: Any) -> None:
    play.interrupts += 1


def goes_on(play: Play, draw: Any) -> None:
    play.decide(draw(st.sampled_from([0.0, 0.1, SETTLE_SECONDS, 6.0, READY_SECONDS])))


DEEDS: list[Deed] = [dies, speaks, is_ready, steps, goes_on, goes_on, goes_on, moves, is_interrupted]

NUMBERS = st.integers(0, 2)


@settings(deadline=None)  # a busy machine is slow
@given(
    rules=st.builds(
        Rules,
        shards=st.integers(1, 2),
        loaders=NUMBERS,
        embedding_workers=NUMBERS,
        workers=st.integers(1, 3),
        journal=st.booleans(),
        snapshots=st.booleans(),
        restarts=st.integers(0, 3),
        grace=st.just(5.0),
    ),
    newest=st.none() | st.integers(1, 50),
    prompt=st.booleans(),
    deeds=st.lists(st.sampled_from(DEEDS), max_size=60),
    data=st.data(),
)
def test_whatever_happens(
    rules: Rules, newest: int | None, prompt: bool, deeds: list[Deed], data: st.DataObject
) -> None:
    """No role runs twice, no restart is too many, and a run that is over has no role that may go on.

    `Play` checks at each action that no role of the name is there, and at the end that all were stopped.
    """
    play = Play(rules, newest=newest, prompt=prompt)
    for deed in deeds:
        if play.over is not None:
            break
        deed(play, data.draw)
    for name in list(play.live) if play.over is None else ():
        play.end(name, 1)
    play.wait(2 * SETTLE_SECONDS)
    for _ in range(LOADER_RESTARTS + rules.restarts + 2):
        if play.over is None:
            play.decide(READY_SECONDS)
            play.settle()
            for name in list(play.live) if play.over is None else ():
                play.end(name, 1)
            play.settle()
    assert play.over is not None
    starts = Counter(start.name.rpartition(" ")[0] for start in play.servers)
    assert starts["loader"] <= rules.loaders + LOADER_RESTARTS
    assert starts["embedding worker"] <= rules.embedding_workers * (1 + rules.restarts)
    fresh = sum(start.fresh for start in play.servers)
    told = sum("all workers restart" in text for text in play.said)
    assert starts["shard"] - rules.shards - fresh + told == play.supervisor.restarts
    assert len(play.groups[1:]) <= told  # fewer, if servers that they need did not come back
    assert play.supervisor.restarts <= rules.restarts
    assert [group.generation for group in play.groups] == list(range(len(play.groups)))
    assert play.supervisor.decide(play.now + 1e6, 5) == []


def joining(rules: Rules) -> Play:
    """A run that trains while a third shard is to join; the workers have their order."""
    play = Play(rules, newest=40)
    play.step(50)
    play.do(play.supervisor.asked(ControlRequest("r", "add")))
    play.wait()
    assert list(play.live)[-1] == "shard 2"
    play.wait()
    return play


def test_a_shard_that_has_no_room_does_not_join() -> None:
    play = Play(RULES)
    play.step(50)
    play.full = ConfigError("the Ray cluster has no room")
    play.do(play.supervisor.asked(ControlRequest("r", "add")))
    play.wait()
    assert play.answers == [play.full]
    assert "shard 2" not in play.live
    play.full = None
    play.do(play.supervisor.asked(ControlRequest("s", "add")))
    play.wait()
    assert "shard 2" in play.live


def moved() -> RowsMoved:
    map = ShardMap(2).after(np.arange(4096, dtype=np.uint16) % 3, [0, 1, 2])
    return RowsMoved(ReshardResult("r", map, {0: 1, 1: 1, 2: 1}))


def test_a_shard_that_joins_is_one_of_the_run_once_its_rows_are_there() -> None:
    play = joining(replace(RULES, snapshots=True))
    assert len(play.supervisor.addresses("shard")) == 2
    play.hear("worker 0", moved())
    assert len(play.supervisor.addresses("shard")) == 3
    play.end("shard 2")
    play.settle()
    play.wait(1.0)
    assert play.groups == [StartWorkers(0), StartWorkers(1, 40)]
    assert play.servers[-1] == StartServer("shard 2", play.servers[-1].address, fresh=True)


@pytest.mark.parametrize("lost", ["worker 1", "shard 0", "shard 2"])
def test_a_death_during_a_move_ends_the_move_and_the_workers_go_back_without_the_new_shard(
    lost: str,
) -> None:
    play = joining(replace(RULES, snapshots=True))
    play.end(lost)
    play.settle()
    play.wait(1.0)
    assert play.groups == [StartWorkers(0), StartWorkers(1, 40)]
    assert len(play.supervisor.addresses("shard")) == 2
    assert "shard 2" not in play.live
    play.hear("worker 0", TRAINED)
    for number in range(2):
        play.end(f"worker {number}", 0)
    play.wait(1.0)
    assert play.over == Finish()


def test_a_shard_with_a_journal_comes_back_into_the_move() -> None:
    play = joining(replace(RULES, journal=True, snapshots=True))
    for name in ("shard 0", "shard 2"):
        play.end(name)
        assert play.supervisor.gone == []
        play.wait()
        assert name in play.live
    play.hear("worker 0", moved())
    assert len(play.supervisor.addresses("shard")) == 3
    assert play.groups == [StartWorkers(0)]


def test_a_drained_shard_may_end() -> None:
    play = Play(RULES)
    play.do(play.supervisor.asked(ControlRequest("r", "drain", 0)))
    play.wait()
    map = ShardMap(2).after(np.ones(4096, np.uint16), [1])
    play.hear("worker 0", RowsMoved(ReshardResult("r", map)))
    assert play.asked == {"shard 0": Stop.RELEASE}
    assert play.supervisor.gone == []
    play.end("shard 0", 0)
    play.settle()
    play.wait(1.0)
    assert play.over is None
    assert play.supervisor.gone == ["shard 0"]
    assert len(play.supervisor.addresses("shard")) == 1


SAVED = Trained(replace(RESULT, stopped="stopped"), {})


def resizing(number: int, rules: Rules = RULES) -> Play:
    """A run after step 30 whose workers have been asked to save, since another number is to go on."""
    play = Play(rules, newest=30)
    play.do(play.supervisor.asked(ControlRequest("a", "workers", number)))
    play.wait()
    assert play.stops == []
    play.step(30)
    play.wait()
    assert [(stop.name, stop.how) for stop in play.stops] == [(f"worker {i}", Stop.SAVE) for i in range(2)]
    return play


def save(play: Play) -> None:
    play.hear("worker 0", Finished(SAVED.result))
    play.hear("worker 0", SAVED)
    for name in [name for name in play.live if name.startswith("worker")]:
        play.end(name, 0)


@pytest.mark.parametrize("number", [1, 3])
def test_another_number_of_workers_goes_on_from_what_the_others_saved(number: int) -> None:
    play = resizing(number)
    save(play)
    play.wait()
    assert play.groups == [StartWorkers(0), StartWorkers(1, 30)]
    assert [name for name in play.live if name.startswith("worker")] == [f"worker {i}" for i in range(number)]
    assert [server.name for server in play.servers] == ["shard 0", "shard 1"]
    assert (play.answers, play.supervisor.restarts, play.supervisor.repeated) == ([], 0, 0)
    assert not any(isinstance(event, Finished) for event in play.told)
    play.step(31)
    play.wait()
    assert [answer["workers"] for answer in play.answers] == [number]
    play.hear("worker 0", TRAINED)
    for name in [name for name in play.live if name.startswith("worker")]:
        play.end(name, 0)
    play.settle()
    assert play.over == Finish(None)


def test_a_run_that_ends_by_itself_meanwhile_has_ended() -> None:
    play = resizing(3)
    play.hear("worker 0", TRAINED)
    for name in ("worker 0", "worker 1"):
        play.end(name, 0)
    play.settle()
    assert play.over == Finish(None)
    assert "the run has ended" in str(play.answers[0])


def test_a_stop_of_the_user_comes_before_another_number_of_workers() -> None:
    play = resizing(3)
    play.interrupts = 1
    play.wait()
    save(play)
    play.settle()
    assert play.over == Finish(None)
    assert play.groups == [StartWorkers(0)]


@pytest.mark.parametrize("error", [None, CheckpointError("the disk is full")])
def test_a_worker_that_dies_or_cannot_save_meanwhile_leaves_the_number_as_it_is(
    error: SatrapError | None,
) -> None:
    play = resizing(3, replace(RULES, snapshots=True))
    if error is not None:
        play.hear("worker 0", Failed(error))
    play.end("worker 0", KILLED if error is None else FAILED)
    play.settle()
    play.settle()
    assert play.groups == [StartWorkers(0), StartWorkers(1, 30)]
    assert sorted(name for name in play.live if name.startswith("worker")) == ["worker 0", "worker 1"]
    assert "continues with 2 workers" in str(play.answers[0])


def test_without_room_for_more_workers_all_go_on() -> None:
    play = Play(RULES)
    play.full = SatrapError("no room")
    play.step(3)
    play.do(play.supervisor.asked(ControlRequest("a", "workers", 3)))
    play.wait()
    assert (play.stops, [str(answer) for answer in play.answers]) == ([], ["no room"])
