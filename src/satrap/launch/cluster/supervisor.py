"""Decides about the roles of a run when they start, report, end or fail; `cluster` acts on it."""

from collections.abc import Iterable

from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import CheckpointError, ExchangeError, SatrapError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.actions import (
    Action,
    FindSnapshot,
    Finish,
    RoleState,
    Say,
    StartServer,
    StartWorkers,
    StopRole,
    Tell,
)
from satrap.launch.cluster.control_requests import ControlRequest
from satrap.launch.cluster.shard_requests import READY_SECONDS, ShardRequests
from satrap.launch.cluster.worker import INTERRUPTED, PEER_LOST
from satrap.launch.cluster.worker_events import Finished, RowsMoved, StepTaken, Trained, TrainingEvent
from satrap.launch.cluster.worker_requests import WorkerRequests
from satrap.launch.folder.outcome import InterruptedRunError
from satrap.launch.launchers.launcher import Logged, Stop
from satrap.runtime.events import Event, Failed, Notice, Recovering

LOADER_RESTARTS = 3
"""Maximum number of loader restarts in a run; a loader has no state to lose."""

SETTLE_SECONDS = 0.5
"""Seconds to wait after the first death, in which dependent roles fail and reveal the cause."""

SERVERS = ("shard", "loader", "embedding worker")
"""Kinds of roles that other roles connect to, in starting order."""


_CONSEQUENCES = {
    "shard": "the rows on this shard are lost, so the run cannot continue",
    "embedding worker": "its workers get no more rows, and updates not yet pushed are lost",
    "loader": "its workers get no more batches",
    "worker": "the other workers cannot continue without this worker",
}


class Supervisor:
    """Decides about the roles of one run: shards, loaders, embedding workers and workers, in this order.

    This is a state machine: `heard` and `decide` take events and return actions, in order. It does not access
    processes, clocks or files. Servers start kind by kind; each kind waits until the previous kinds are
    ready. A name is "shard 0" or "embedding worker 1".

    - With a journal, a killed shard is restarted, and all other roles wait.
    - Without a journal, or when a worker or embedding worker dies, all workers restart as a new generation,
    from the newest snapshot if the run takes any; surviving servers stay. Both count as restarts.
    - If a server comes back at another address, on another node of a cluster, all workers also restart.
    - Shards that the run did not start are not supervised; if one is lost, all workers restart as above.
    - Loaders are restarted up to `LOADER_RESTARTS` times.
    - Before the workers start, every killed shard or loader is restarted, within the same limits.
    - Any other early end ends the run. The error names the first role that died or reported a reason.
    - If the user requests another number of workers, all save and end, and the new number resumes.

    `restarts` counts restarts of shards and of all workers together; `repeated` is roughly the number of
    steps repeated because of them. `trained` is the result of rank 0, None before its end.
    """

    def __init__(
        self, keys: ClusterKeys, *, journal: bool, snapshots: bool, requests: ShardRequests | None = None
    ) -> None:
        self._keys, self._journal, self._snapshots = keys, journal, snapshots
        self._requests = requests or ShardRequests(ShardMap(keys.servers or 1))
        self._workers = WorkerRequests(keys.workers)
        shards = self._requests.map.members if keys.servers else []
        numbers = (shards, range(keys.loaders), range(keys.embedding_workers))
        self._stages = list(zip(SERVERS, numbers, strict=True))
        self._roles: dict[str, RoleState] = {}
        self._errors: dict[str, SatrapError] = {}  # in order of arrival; the first is the likeliest cause
        self._generation, self._step, self._loader_restarts, self._interrupts = -1, 0, 0, 0
        self._ready_until: float | None = None  # None: to be set after the next start of servers
        self._settle_until: float | None = None
        self._stop_until: float | None = None
        self._setback: SatrapError | None = None  # reason for a restart of all workers
        self._starting = True  # until the workers start
        self._origin: int | None = None  # the step of the snapshot from which they start
        self.restarts, self.repeated, self.finished = 0, 0, False
        self.trained: Trained | None = None

    def addresses(self, kind: str) -> tuple[str, ...]:
        """Return HOST:PORT of the servers of a kind."""
        if kind == "shard" and self._keys.addresses:
            return tuple(self._keys.addresses)
        if kind == "shard":
            names = [f"shard {number}" for number in self._requests.map.members]
            return tuple(self._roles[name].address for name in names if name in self._roles)
        return tuple(role.address for role in self._all(kind))

    @property
    def gone(self) -> list[str]:
        """Names of ended shards that will not come back: drained shards and shards that never joined."""
        return [name for name, role in self._roles.items() if role.aside and role.code is not None]

    def asked(self, request: ControlRequest) -> list[Action]:
        """Receive a user's request about the shards or the number of workers."""
        return (self._workers if request.command == "workers" else self._requests).ask(request)

    def has_room(self, error: SatrapError | None) -> list[Action]:
        """Receive the error if the requested number of workers cannot train, else None."""
        return self._workers.has_room(error, _running(self._all("worker")))

    def shard_has_room(self, error: SatrapError | None) -> list[Action]:
        """Receive the error if the joining shard has no resources, else None."""
        return self._requests.has_room(error, self._roles)

    def _all(self, *kinds: str) -> list[RoleState]:
        roles = [role for role in self._roles.values() if not role.aside]
        return [role for kind in kinds for role in roles if role.kind == kind]

    def heard(self, name: str, event: Event) -> list[Action]:
        """Receive an event of a role."""
        self._roles[name].heard(event)
        match event:
            case Logged(line):
                return [Say(f"[{name}] {line}")]
            case Recovering(source):
                return [Say(f"[{name}] lost; restarting from {source}")]
            case Notice(text):
                return [Say(text)]
            case Failed(error):
                self._errors[name] = error
            case Trained():
                self.trained = event
            case StepTaken(progress):
                self._step = progress.step
                self._workers.stepped()
            case Finished() if self._workers.stopping:
                return []  # new workers continue
            case RowsMoved(moved):
                return self._requests.answered(moved, self._roles)
        return [Tell(event)] if isinstance(event, TrainingEvent) else []

    def decide(self, now: float, interrupts: int = 0) -> list[Action]:
        """Return the next actions. Call this often, with the time in seconds and the number of interrupts."""
        self._interrupts = interrupts
        if self.finished:
            return []
        if self._setback is not None:
            return [] if _running(self._all("worker")) else [FindSnapshot()]
        return self._start(now) if self._starting else self._supervise(now)

    def _start(self, now: float) -> list[Action]:
        """Start servers and, when all are ready, the workers."""
        if self._interrupts:
            lost = "interrupted while processes were restarting: the state since the newest snapshot is lost"
            return self._finish(KeyboardInterrupt() if self._generation < 0 else InterruptedRunError(lost))
        actions = self._restart_loaders() + self._restart_shards() + self._judge(now)
        if self.finished or self._settle_until is not None:
            return actions
        if self._ready_until is None or any(isinstance(action, StartServer) for action in actions):
            self._ready_until = now + READY_SECONDS
        late = [role for role in self._all(*SERVERS) if not role.ready]
        while self._stages and not late:
            kind, numbers = self._stages.pop(0)
            actions += [self._start_server(f"{kind} {number}") for number in numbers]
            late, self._ready_until = self._all(kind), now + READY_SECONDS
        if not late:
            return actions + self._start_workers()
        if now > self._ready_until:
            what = f"{late[0].name} was not ready after {READY_SECONDS:g} s"
            return actions + self._finish(ExchangeError(what, where=late[0].traces))
        return actions

    def _start_server(self, name: str, *, fresh: bool = False) -> StartServer:
        address = self._roles[name].address if name in self._roles else ""
        self._roles[name] = RoleState(name, address)
        return StartServer(name, address, fresh)

    def _start_workers(self) -> list[Action]:
        self._generation += 1
        self._starting = False
        for role in self._all(*SERVERS):
            role.moved = False  # the workers get the new address
        self._roles |= {f"worker {i}": RoleState(f"worker {i}") for i in range(self._workers.workers)}
        return [StartWorkers(self._generation, self._origin)]

    def _supervise(self, now: float) -> list[Action]:
        """Supervise the run until the workers have ended."""
        actions = self._restart_loaders() + self._restart_shards()
        running = _running(self._all("worker"))
        if running:
            actions += self._answer_requests(now)
            actions += self._stop_at_interrupts(now, running)
        if not self.finished:
            actions += self._judge(now)
        if not running and not self.finished and self._settle_until is None and self._setback is None:
            if self._saved:
                return [*actions, FindSnapshot()]
            error = None if self.trained else self._errors.get("worker 0", KeyboardInterrupt())
            actions += self._finish(error)
        return actions

    @property
    def _saved(self) -> bool:
        """Whether the workers have ended for a change of their number."""
        stopped = self.trained is not None and self.trained.result.stopped == "stopped"
        return stopped and self._workers.stopping and not self._interrupts

    def _answer_requests(self, now: float) -> list[Action]:
        if self._interrupts or self._workers.stopping:
            return []
        actions = self._requests.decide(now, self._roles)
        return actions if self._requests.busy else [*actions, *self._workers.decide(now)]

    def _restart_loaders(self) -> list[Action]:
        """Restart dead loaders at their addresses, where workers request the next batch."""
        actions: list[Action] = []
        if self._interrupts or self._settle_until is not None:
            return actions
        for role in self._all("loader"):
            # A loader that ended by itself before its first use would end again.
            dead = role.code is not None if self._generation >= 0 else role.killed
            if dead and self._loader_restarts < LOADER_RESTARTS:
                self._loader_restarts += 1
                count = f"restart {self._loader_restarts} of {LOADER_RESTARTS}"
                text = f"{role.name} {role.ending} ({role.traces}): restarting it ({count})"
                actions += [Say(text), self._start_server(role.name)]
        return actions

    def _restart_shards(self) -> list[Action]:
        """Restart killed shards, at their addresses, if they have a journal or no rows yet."""
        actions: list[Action] = []
        if not (self._starting or self._journal) or self._settle_until is not None:
            return actions
        for role in self._all("shard"):
            # A shard that ended by itself reported the reason and would end again.
            if role.killed and self.restarts < self._keys.restarts:
                self.restarts += 1
                text = f"[{role.name}] {role.ending}; training waits for it ({self._count()})"
                actions += [self._start_server(role.name), Say(text)]
        return actions

    def _count(self) -> str:
        return f"restart {self.restarts} of {self._keys.restarts}"

    def _stop_at_interrupts(self, now: float, running: Iterable[RoleState]) -> list[Action]:
        if self._interrupts > 1:
            what = "interrupted twice: all processes were killed, and the state was not saved"
            return self._finish(InterruptedRunError(what))
        if self._interrupts and self._stop_until is None:
            self._stop_until = now + self._keys.grace
            notice = Say("saving after this step; Ctrl-C again to kill")
            return [notice, *(StopRole(role.name, Stop.SAVE) for role in running)]
        if self._stop_until is not None and now > self._stop_until:
            return self._finish(_too_slow(self._keys.grace))
        return []

    def _judge(self, now: float) -> list[Action]:
        """Handle lost roles after dependent roles had time to fail: restart the workers or end the run."""
        lost = self._lost() or self._moved()
        if not lost:
            self._settle_until = None
            return []
        if self._settle_until is None:
            self._settle_until = now + SETTLE_SECONDS
        if now < self._settle_until:
            return []
        self._settle_until = None
        used = self.restarts if self.restarts == self._keys.restarts else 0
        error = self._errors.get(lost[0].name) or _loss_of(lost[0], used, snapshots=self._snapshots)
        if lost[0].code is None:
            error = _removal_of(lost[0])
        again = self._snapshots and self._generation >= 0 and self.restarts < self._keys.restarts
        may_return = again and self._stop_until is None and all(map(self._may_return, lost))
        if not may_return or not isinstance(error, ExchangeError | CheckpointError):
            return self._finish(error)
        self._setback = error
        given_up = self._requests.give_up("all workers restart", self._roles)
        given_up += self._workers.give_up(f"{error.what}; all workers restart")
        return [*given_up, *(StopRole(role.name, Stop.KILL) for role in _running(self._all("worker")))]

    def _lost(self) -> list[RoleState]:
        """Return the roles that ended unexpectedly, with the likeliest cause first."""
        final = self._generation < 0 or self._interrupts or self._loader_restarts >= LOADER_RESTARTS
        kinds = ["shard", "embedding worker", *(["loader"] if final else [])]
        workers = [
            role
            for role in self._all("worker")
            if role.code not in (None, 0, INTERRUPTED)
            and not isinstance(self._errors.get(role.name), InterruptedRunError)
        ]
        order = list(self._errors)
        first = {role: order.index(role.name) if role.name in order else len(order) for role in workers}
        servers = [role for role in self._all(*kinds) if role.code is not None]
        return servers + sorted(workers, key=lambda role: (role.code == PEER_LOST, first[role]))

    def _moved(self) -> list[RoleState]:
        """Return the servers whose address has changed while running processes use the old one."""
        kinds = SERVERS if not self._starting else ("shard",) if self._all("embedding worker") else ()
        return [role for role in self._all(*kinds) if role.moved]

    def _may_return(self, role: RoleState) -> bool:
        """Whether a role ended for a reason that may not recur, or has a new address that others can get."""
        if role.code is None:  # embedding workers do not restart
            return role.kind == "loader" or not self._all("embedding worker")
        match role.kind:
            case "shard":  # if its journal fails, the newest snapshot restores it
                return role.killed or self._journal
            case "worker" | "embedding worker":
                error = self._errors.get(role.name)
                # The user did not request an end.
                unsaved = self._workers.stopping and isinstance(error, CheckpointError)
                return role.killed or unsaved or (role.code == PEER_LOST and isinstance(error, ExchangeError))
        return False  # loaders have used up their restarts

    def restart_workers(self, step: int | None) -> list[Action]:
        """Restart lost servers (shards start empty), then all workers from the newest snapshot, if any.

        If the workers have saved and ended for a change of their number, start the new number of workers.
        """
        error, self._setback, self.trained = self._setback, None, None
        self._errors = {name: old for name, old in self._errors.items() if not name.startswith("worker")}
        for role in self._all("worker"):
            del self._roles[role.name]
        self._starting, self._origin, self._ready_until = True, step, None
        self._workers.restarted()
        if error is None:
            return self._workers.saved(step)
        self.restarts += 1
        servers = [
            self._start_server(role.name, fresh=role.kind == "shard")
            for role in self._all("shard", "embedding worker")
            if role.code is not None
        ]
        lost = max(self._step - (step or 0), 0)
        self.repeated += lost
        return [*servers, _said(error, step, lost, self._count())]

    def _finish(self, error: BaseException | None) -> list[Action]:
        self.finished, why = True, "the run has ended"
        how = Stop.RELEASE if error is None else Stop.KILL
        given_up = self._requests.give_up(why, self._roles, final=True)
        given_up += self._workers.give_up(why, final=True)
        stops = [StopRole(role.name, how) for role in _running(self._roles.values())]
        return [*given_up, *stops, Finish(error)]


def _loss_of(lost: RoleState, used: int, *, snapshots: bool) -> ExchangeError:
    """Return the error about a lost role; `used` is the number of restarts if no more are allowed, else 0."""
    served = lost.ready or lost.kind == "worker"
    why = _CONSEQUENCES[lost.kind] if served else f"training cannot start without {lost.name}"
    if used:
        why = f"processes were already restarted {used} times, the limit of cluster.restarts"
    advice = f"see the last log lines of {lost.name} above"
    if lost.killed:
        advice = "see the log lines above; if the system killed the process, it may have run out of memory"
    if not snapshots:
        advice += "; with checkpoint.every_steps a run continues after such a loss"
    return ExchangeError(f"{lost.name} {lost.ending}", where=lost.traces, why=why, fix=advice)


def _too_slow(grace: float) -> InterruptedRunError:
    return InterruptedRunError(
        f"interrupted; the workers had not stopped after {grace:g} s and were killed",
        why="the state since the newest snapshot was not saved",
        fix="raise cluster.grace",
    )


def _said(error: SatrapError, step: int | None, lost: int, count: str) -> Say:
    """Return the line about a restart of all workers, which repeats `lost` steps."""
    origin = "the beginning (no snapshot yet)" if step is None else f"the snapshot of step {step:,}"
    return Say(
        f"{error.what} ({error.where.partition(';')[0]}): all workers restart from {origin}; about "
        f"{lost:,} steps are repeated ({count})"
    )


def _removal_of(lost: RoleState) -> ExchangeError:
    return ExchangeError(
        f"{lost.name} came back at another address, {lost.address}",
        where=lost.traces,
        why="other processes only know its old address",
        fix="set checkpoint.every_steps; then, without embedding workers, all workers restart",
    )


def _running(roles: Iterable[RoleState]) -> list[RoleState]:
    return [role for role in roles if role.code is None]
