"""What a launcher makes of the answers of agents, and of their silence; without Ray."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from satrap.config.keys.cluster import ClusterKeys
from satrap.launch.launchers import ray_launcher
from satrap.launch.launchers.launcher import Ended, Launched, Logged, Stop
from satrap.launch.launchers.ray_agent import OutputLine, Warned
from satrap.launch.launchers.ray_launcher import RayLauncher, _Placed
from satrap.runtime.events import Event, Failed, encode


class TaskError(Exception):
    pass


class ActorError(Exception):
    actor_init_failed = False


class UnavailableError(Exception):
    pass


class LateError(Exception):
    pass


class RayHere:
    """The part of Ray that a launcher calls for its events: answers are there at once, and may be errors."""

    exceptions = SimpleNamespace(
        RayTaskError=TaskError,
        RayActorError=ActorError,
        ActorUnavailableError=UnavailableError,
        GetTimeoutError=LateError,
    )

    def __init__(self) -> None:
        self.now, self.killed, self.waits = 1000.0, list[object](), list[float]()

    def wait(
        self, answers: list[Any], *, timeout: float, num_returns: int = 1
    ) -> tuple[list[Any], list[Any]]:
        self.waits.append(timeout)
        return [one for one in answers if one is not None][:num_returns], []

    def get(self, answer: Any, *, timeout: float) -> Any:
        found = answer.content
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, agent: object) -> None:
        self.killed.append(agent)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answer:
    """Of an agent: lines, or an error."""

    def __init__(self, content: Any) -> None:
        self.content = content


class AgentHere:
    """Answers as written down, and is silent from then on."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked, self.stops = list(answers), list[Any](), list[str]()
        self.events = SimpleNamespace(remote=self._events)
        self.stop = SimpleNamespace(remote=self.stops.append)

    def _events(self, *given: Any) -> Answer | None:
        self.asked.append(given)
        return Answer(self.answers.pop(0)) if self.answers else None


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayHere:
    here = RayHere()
    monkeypatch.setattr(ray_launcher, "time", here)
    return here


def launcher(ray: RayHere, *agents: AgentHere) -> RayLauncher:
    """A launcher of shards that have been placed."""
    made = RayLauncher.__new__(RayLauncher)
    made._ray, made._keys = ray, ClusterKeys(exchange="servers", launcher="ray", deadline=30.0, wait=7.0)
    made._notes = []  # type: ignore[attr-defined]
    made._notice, made._warned, made._roles = made._notes.append, set(), {}  # type: ignore[attr-defined]
    made._asked = {f"shard {number}": {"CPU": 2.0} for number in range(len(agents))}
    for number, agent in enumerate(agents):
        made._roles[f"shard {number}"] = placed = _Placed(agent, ray.now)
        made._ask(placed)
    return made


def line(event: Event) -> str:
    return encode(event)


def test_events_are_told_in_order_until_the_end(ray: RayHere) -> None:
    first = AgentHere([line(Launched("process 1")), line(OutputLine("text"))], [line(Ended(3))])
    second = AgentHere([line(OutputLine(line(Logged("an event")))), line(Warned("slow nodes"))])
    made = launcher(ray, first, second)
    assert made.events(0.5) == [
        ("shard 0", Launched("process 1")),
        ("shard 0", Logged("text")),
        ("shard 1", Logged("an event")),
    ]
    assert made._notes == ["slow nodes"]  # type: ignore[attr-defined]
    assert ray.waits == [0.5, 0]
    assert made.events(0.5) == [("shard 0", Ended(3))]
    assert (first.asked, second.asked) == ([(0, 2.0), (2, 2.0)], [(0, 2.0), (2, 2.0)])
    assert ray.killed == [first]
    assert list(made._roles) == ["shard 1"]


def test_a_warning_of_several_nodes_is_told_once(ray: RayHere) -> None:
    made = launcher(ray, *(AgentHere([line(Warned(text))]) for text in ("a", "b", "a")))
    assert made.events(0.0) == []
    assert made._notes == ["a", "b"]  # type: ignore[attr-defined]


def test_without_roles_time_passes(ray: RayHere) -> None:
    assert launcher(ray).events(0.5) == []
    assert ray.now == 1000.5


@pytest.mark.parametrize("error", [UnavailableError(), LateError()])
def test_an_agent_that_is_late_is_asked_again(ray: RayHere, error: Exception) -> None:
    agent = AgentHere(error, [line(Ended(0))])
    made = launcher(ray, agent)
    assert made.events(0.0) == []
    assert made.events(0.0) == [("shard 0", Ended(0))]
    assert agent.asked == [(0, 2.0), (0, 2.0)]


@pytest.mark.parametrize("failed", [False, True])
def test_a_dead_agent_is_a_lost_role_or_one_that_cannot_start(ray: RayHere, failed: bool) -> None:
    error = ActorError("Traceback:\nit died")
    error.actor_init_failed = failed
    made = launcher(ray, AgentHere(error))
    (_, first), (_, last) = made.events(0.0)
    if failed:
        assert isinstance(first, Failed)
        assert last == Ended(1)
    else:
        assert (first, last) == (Logged("it died"), Ended(-signal.SIGKILL))
    assert made._roles == {}


def test_a_node_without_satrap_cannot_start_a_role(ray: RayHere) -> None:
    (_, first), (_, last) = launcher(ray, AgentHere(TaskError("no module satrap"))).events(0.0)
    assert isinstance(first, Failed)
    assert (first.error.what, first.error.why) == ("Ray could not start shard 0", "no module satrap")
    assert last == Ended(1)


def test_roles_are_stopped_as_asked(ray: RayHere) -> None:
    agent = AgentHere()
    made = launcher(ray, agent)
    made.stop("shard 7", Stop.KILL)  # has ended
    placed = made._roles["shard 0"]
    made.stop("shard 0", Stop.SAVE)
    assert (placed.released, placed.kill_until) == (False, None)
    made.stop("shard 0", Stop.RELEASE)
    assert (placed.released, placed.kill_until) == (True, None)
    made.stop("shard 0", Stop.KILL)
    ray.now += 1.0
    made.stop("shard 0", Stop.KILL)  # does not buy time
    assert (placed.released, placed.kill_until) == (True, 1005.0)
    assert agent.stops == ["SAVE", "RELEASE", "KILL", "KILL"]
    ray.now = 1005.0
    assert made.events(0.0) == []
    ray.now = 1005.5
    assert made.events(0.0) == [("shard 0", Logged("killed")), ("shard 0", Ended(-signal.SIGKILL))]
    assert ray.killed == [agent]


def test_a_silent_agent_is_given_up_after_the_deadline(ray: RayHere) -> None:
    """30 s, and 2 s for the answer."""
    made = launcher(ray, AgentHere([line(Launched("process 1"))]))
    assert made.events(0.0) == [("shard 0", Launched("process 1"))]
    ray.now += 32.0
    assert made.events(0.0) == []
    ray.now += 1.0
    lost = [Logged("the node has not answered for 33 s"), Ended(-signal.SIGKILL)]
    assert made.events(0.0) == [("shard 0", event) for event in lost]


def test_a_role_without_a_place_is_given_up(ray: RayHere) -> None:
    """90 s for Ray, and 7 s of cluster.wait."""
    made = launcher(ray, AgentHere())
    ray.now += 97.0
    assert made.events(0.0) == []
    ray.now += 1.0
    (_, first), (_, last) = made.events(0.0)
    assert isinstance(first, Failed)
    assert first.error.what == "shard 0 was not placed on the Ray cluster within 98 s"
    assert (first.error.where, last) == ("shard 0 needs 2 CPU", Ended(1))
    assert made._roles == {}
