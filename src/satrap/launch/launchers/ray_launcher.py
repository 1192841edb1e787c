"""Roles on a Ray cluster: Ray places them, starts an agent for each, and detects deaths."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import satrap
from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import ConfigError, ExchangeError
from satrap.launch.launchers.launcher import Ended, Logged, Role, Stop
from satrap.launch.launchers.local_launcher import STOP_SECONDS
from satrap.launch.launchers.ray_agent import Agent, OutputLine, Terms, Warned, priority
from satrap.launch.launchers.ray_cluster import join, last_line, ray_module
from satrap.launch.launchers.resource_fit import Amounts, asked, by_kind, fitting, relevant, total, words
from satrap.runtime.events import Event, Failed, decode

ANSWER_SECONDS = 2.0
"""Seconds after which an agent answers without events."""

PLACE_SECONDS = 90.0
"""Seconds for Ray to start the agent of a role with reserved resources, or to find other resources."""

KILL_SECONDS = 5.0
"""Seconds for a killed role to end before its agent is killed."""

DECIDED_SECONDS = 0.5
"""Seconds for Ray to decide on a placement; it takes some milliseconds."""

SETTLE_SECONDS = 10.0
"""Seconds for Ray to use released resources."""

_TICK = 0.1
_KILLED = -signal.SIGKILL
_OBJECT_STORE = 100 << 20
"""Bytes of the object store of a Ray started here; no rows or tensors pass through it."""


@dataclass
class _Placed:
    """A role and its agent."""

    agent: Any
    asked_at: float  # time of the pending request
    answer: Any = None  # pending answer of the agent
    have: int = 0  # number of events received
    kill_until: float | None = None
    released: bool = False


class RayLauncher:
    """Launches roles on a Ray cluster, see `satrap.launch.launchers.launcher.Launcher`.

    All resources are reserved in one placement group before the first role starts. A role that is added later
    has its own placement group. Each role has an actor, its `Agent`, which Ray never restarts, because the
    caller decides about restarts. Only text passes through Ray. Agents end with the program that started
    them, and roles end with their agents.

    Without a key, all nodes must be on this machine, and roles listen on loopback. With a key, roles listen
    on the addresses of their nodes.

    Args:
        keys: the processes to start, and the Ray cluster.
        run: identity of the run.
        folder: where roles run; every node must have it.
        needs: files and folders that every node must have.
        notice: called with lines for the user.
        label: name of the run in Ray's metrics.
        shards: numbers of the shards; default: from `keys`.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, nodes are on other machines without a key, or
            the cluster has too few resources; the message names the roles and missing resources.
    """

    def __init__(
        self,
        keys: ClusterKeys,
        *,
        run: str,
        folder: str,
        needs: Sequence[str],
        notice: Callable[[str], None],
        label: str = "",
        shards: Collection[int] | None = None,
    ) -> None:
        self._keys, self._notice = keys, notice
        self._roles: dict[str, _Placed] = {}
        self._asked = asked(keys, shards)
        self._places: dict[str, tuple[Any, int]] = {}  # role -> placement group, number of its bundle
        self._warned: set[str] = set()
        self._ours = False
        self._ray = ray_module()
        if not self._ray.is_initialized():
            self._ours = True
            self._connect()
        try:
            self.host = self._host()
            host = "" if keys.key else self.host
            self._terms = Terms(run, satrap.__version__, folder, tuple(needs), host, priority(), label)
            self._place(self._asked, self._keys.wait)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        address = self._keys.address
        options: dict[str, Any] = {}
        if address is None:
            amounts = total(self._asked.values())
            custom = {name: n for name, n in amounts.items() if name not in ("CPU", "GPU", "memory")}
            options = {
                "num_cpus": math.ceil(amounts.get("CPU", 0)) or 1,  # roles on one machine share its cores
                "resources": custom,
                "object_store_memory": _OBJECT_STORE,
                "include_dashboard": False,
                # By default, Ray's workers have the lowest priority and are killed first.
                "_system_config": {"worker_niceness": 0, "worker_oom_score_adjustment": 0},
            }
        join(address, **options)

    def _host(self) -> str:
        here = str(self._ray.util.get_node_ip_address())
        elsewhere = sorted({node["NodeManagerAddress"] for node in self._nodes()} - {here})
        if self._keys.key:
            return here
        if elsewhere:
            raise ConfigError(
                "cluster.key is missing, but the Ray cluster has nodes on other machines",
                where=", ".join(elsewhere[:5]),
                why="without a key, processes listen on loopback only",
                fix="create a key with satrap key FILE, and copy it to the same path on all nodes",
            )
        return "127.0.0.1"

    def _nodes(self) -> list[Mapping[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def reserve(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Reserve a placement group for each additional role in `keys`, or for no role.

        Raises:
            ConfigError: the cluster has too few free resources; `cluster.wait` only applies at the start.
        """
        more = {name: amounts for name, amounts in asked(keys, shards).items() if name not in self._places}
        try:
            for name, amounts in more.items():
                self._place({name: amounts}, 0.0)
        except ConfigError as error:
            self._give_back(more)
            fix = "add nodes, or request fewer processes"  # cluster.wait does not apply here
            raise ConfigError(error.what, where=error.where, why=error.why, fix=fix) from error
        self._asked |= more

    def release(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Release the resources of roles added later; a group of several roles stays reserved."""
        self._give_back(self._places.keys() - asked(keys, shards).keys())

    def _give_back(self, names: Iterable[str]) -> None:
        for name in [name for name in names if name in self._places]:
            group, _ = self._places[name]
            if sum(other is group for other, _ in self._places.values()) == 1:
                del self._places[name]
                self._ray.util.remove_placement_group(group)

    def _place(self, roles: Mapping[str, Amounts], wait: float) -> None:
        """Reserve the resources of roles in one placement group."""
        from ray.util import placement_group, placement_group_table

        bundles = [dict(amounts) or {"CPU": 0.001} for amounts in roles.values()]
        group = placement_group(bundles, strategy="SPREAD")
        began, notified = time.monotonic(), False
        while not group.wait(0.1):
            waited = time.monotonic() - began
            state = placement_group_table(group)["stats"]["scheduling_state"]
            if waited < DECIDED_SECONDS:
                continue
            lack = self._lack(roles, ever=state == "INFEASIBLE")
            if lack is None and waited < SETTLE_SECONDS:
                continue  # resources were just released
            lack = lack or self._error(
                "cannot place the processes of the run together", "each process would fit alone"
            )
            if waited > wait:
                self._ray.util.remove_placement_group(group)
                raise lack
            if not notified:
                self._notice(f"{lack.what} ({lack.where}); waiting up to {wait:g} s")
                notified = True
        self._places |= {name: (group, number) for number, name in enumerate(roles)}

    def _lack(self, roles: Mapping[str, Amounts], *, ever: bool) -> ConfigError | None:
        """Return the error about missing total (`ever`) or free resources; None if all roles fit."""
        nodes = [node["Resources"] for node in self._nodes()]
        fit = fitting(roles, nodes if ever else [self._ray.available_resources()])
        if len(fit) == len(roles):
            return None
        what = "is too small for" if ever else "has too few free resources for"
        return self._error(f"{what} the processes of the run", by_kind(roles, fit))

    def _error(self, what: str, where: str) -> ConfigError:
        nodes = self._nodes()
        have = relevant(total(node["Resources"] for node in nodes), self._asked)
        free = relevant(self._ray.available_resources(), self._asked)
        return ConfigError(
            f"the Ray cluster {what}",
            where=where,
            why=f"the cluster's {len(nodes)} nodes have {words(have)}; {words(free)} are free",
            fix="lower cluster.resources, add nodes, or set cluster.wait to wait in the queue",
        )

    def start(self, role: Role) -> None:
        """Start a role; one of the same name must have ended."""
        from ray.util import get_node_ip_address
        from ray.util.metrics import Gauge
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert role.name not in self._roles
        amounts, (group, number) = dict(self._asked[role.name]), self._places[role.name]
        options = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
        if "memory" in amounts:
            options["memory"] = amounts.pop("memory")
        actor = self._ray.remote(Agent).options(
            **options,
            resources=amounts,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,  # `stop` must run while `events` waits
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        )
        texts = json.dumps(asdict(role)), json.dumps(asdict(self._terms))
        agent = actor.remote(*texts, get_node_ip_address, Gauge)
        self._roles[role.name] = placed = _Placed(agent, time.monotonic())
        self._ask(placed)

    def _ask(self, placed: _Placed) -> None:
        placed.answer = placed.agent.events.remote(placed.have, ANSWER_SECONDS)

    def stop(self, name: str, how: Stop) -> None:
        """Request the end of a role, or kill it; do nothing if it has ended."""
        placed = self._roles.get(name)
        if placed is None:
            return
        placed.agent.stop.remote(how.name)
        placed.released |= how is Stop.RELEASE
        if how is Stop.KILL and placed.kill_until is None:
            placed.kill_until = time.monotonic() + KILL_SECONDS

    def events(self, seconds: float) -> list[tuple[str, Event]]:
        """Return reports as (name, event), in order; wait at most `seconds` for the first one."""
        if not self._roles:
            time.sleep(seconds)
            return []
        answers = {placed.answer: name for name, placed in self._roles.items()}
        self._ray.wait(list(answers), timeout=seconds)
        done, _ = self._ray.wait(list(answers), num_returns=len(answers), timeout=0)
        events = [(answers[answer], event) for answer in done for event in self._answer(answers[answer])]
        for name in list(self._roles):
            events += [(name, event) for event in self._give_up(name)]
        return events

    def _answer(self, name: str) -> list[Event]:
        """Return the events in an agent's answer, or in Ray's error; request more events."""
        placed, errors = self._roles[name], self._ray.exceptions
        try:
            lines = self._ray.get(placed.answer, timeout=KILL_SECONDS)
        except (errors.ActorUnavailableError, errors.GetTimeoutError):
            self._ask(placed)  # keeps the time of the first request
            return []
        except errors.RayTaskError as error:  # the node cannot import the agent
            return self._unstartable(name, error)
        except errors.RayActorError as error:
            return (
                self._unstartable(name, error)
                if error.actor_init_failed
                else self._lost(name, last_line(error))
            )
        events: list[Event] = []
        for event in map(_event, lines):
            if isinstance(event, Warned):
                if event.text not in self._warned:
                    self._notice(event.text)
                self._warned.add(event.text)
            else:
                events.append(event)
        placed.have += len(lines)
        placed.asked_at = time.monotonic()
        if any(isinstance(event, Ended) for event in events):
            self._forget(name)
        else:
            self._ask(placed)
        return events

    def _give_up(self, name: str) -> list[Event]:
        """End a role that survives a kill, was never placed, or whose agent does not answer."""
        placed, now = self._roles[name], time.monotonic()
        if placed.kill_until is not None and now > placed.kill_until:
            return self._lost(name, "killed")
        waited = now - placed.asked_at
        if placed.have and waited > self._keys.deadline + ANSWER_SECONDS:
            return self._lost(name, f"the node has not answered for {waited:.0f} s")
        if not placed.have and waited > PLACE_SECONDS + self._keys.wait:
            fix = "add a node, or set cluster.wait"
            what = f"{name} was not placed on the Ray cluster within {waited:.0f} s"
            self._forget(name)
            return [
                Failed(ExchangeError(what, where=f"{name} needs {words(self._asked[name])}", fix=fix)),
                Ended(1),
            ]
        return []

    def _lost(self, name: str, why: str) -> list[Event]:
        """Return the events of a role whose agent has died or does not answer."""
        self._forget(name)
        return [Logged(why), Ended(_KILLED)]

    def _unstartable(self, name: str, error: Exception) -> list[Event]:
        self._forget(name)
        fix = "install satrap on all nodes, in the environment of ray start"
        return [Failed(ExchangeError(f"Ray could not start {name}", why=last_line(error), fix=fix)), Ended(1)]

    def _forget(self, name: str) -> None:
        self._ray.kill(self._roles.pop(name).agent)

    def close(self) -> None:
        """Kill the roles that were not released; return when all have ended."""
        for name, placed in self._roles.items():
            if not placed.released:
                self.stop(name, Stop.KILL)
        limit = time.monotonic() + STOP_SECONDS
        while self._roles and time.monotonic() < limit:
            self.events(_TICK)
        for name in list(self._roles):
            self._forget(name)
        for group in {id(group): group for group, _ in self._places.values()}.values():
            self._ray.util.remove_placement_group(group)
        if self._ours:
            self._ray.shutdown()


def _event(line: str) -> Event:
    event = decode(line)
    assert event is not None
    return decode(event.line) or Logged(event.line) if isinstance(event, OutputLine) else event
