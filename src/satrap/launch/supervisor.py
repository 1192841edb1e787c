"""Decides what to do when roles of a run start, report, end or fail; others carry it out."""

from collections.abc import Iterable

from satrap.config.cluster import Cluster
from satrap.errors import CheckpointError, ExchangeError, SatrapError
from satrap.events import Event, Failed, Notice, Recovering
from satrap.exchange.shard_map import ShardMap
from satrap.launch.actions import (
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
from satrap.launch.events import Finished, RowsMoved, Stepped, Trained, TrainingEvent
from satrap.launch.mailbox import Request
from satrap.launch.outcome import InterruptedRunError
from satrap.launch.shard_requests import READY_SECONDS, ShardRequests
from satrap.launch.worker import INTERRUPTED, PEER_LOST
from satrap.launch.worker_requests import WorkerRequests
from satrap.launchers.launcher import Logged, Stop

LOADER_RESTARTS = 3
"""How often dead loaders are restarted in a run; they hold nothing that could be lost."""

SETTLE_SECONDS = 0.5
"""Seconds after the first death: others follow within them, and show which role caused it."""

SERVERS = ("shard", "loader", "embedding worker")
"""Kinds of roles that others connect to, in the order in which they are started."""


_CONSEQUENCES = {
    "shard": "the rows it held are lost, and the run with them",
    "embedding worker": "the workers it served get no more rows, and what it had not pushed is lost",
    "loader": "the workers it read for get no more batches",
    "worker": "the others cannot go on alone",
}


class Supervisor:
    """Decides about the roles of one run: shards, loaders, embedding workers and workers, in this order.

    It is a state machine: `heard` and `decide` take what has happened, and return the actions to take, in
    order. It knows no process, clock or file. Servers are started kind by kind; each kind waits until the
    kinds before it are ready. A name is "shard 0" or "embedding worker 1".

    - With a journal, a shard that is killed is restarted; all others wait.
    - Without one, or when a worker or embedding worker dies, all workers restart as a new generation, from
      the newest snapshot if the run takes any; surviving servers stay. Both count as restarts.
    - If a server comes back at another address, on another node of a cluster, all workers restart, too.
    - Shards that ran before are not supervised; if one is lost, all workers restart as above.
    - Loaders are restarted up to `LOADER_RESTARTS` times.
    - Before the workers start, any shard or loader that is killed is started again, as often as later.
    - Any other early end ends the run. The error names the role that died first, or gave a reason.
    - If the user wants another number of workers, all save and end, and so many start from there.

    `restarts` counts restarts of shards, or of all workers together, `repeated` roughly the steps done again
    because of them. `trained` is what rank 0 has achieved, None before that.
    """

    def __init__(
        self, keys: Cluster, *, journal: bool, snapshots: bool, requests: ShardRequests | None = None
    ) -> None:
        self._keys, self._journal, self._snapshots = keys, journal, snapshots
        self._requests = requests or ShardRequests(ShardMap(keys.servers or 1))
        self._workers = WorkerRequests(keys.workers)
        shards = self._requests.map.members if keys.servers else []
        numbers = (shards, range(keys.loaders), range(keys.embedding_workers))
        self._stages = list(zip(SERVERS, numbers, strict=True))
        self._roles: dict[str, RoleState] = {}
        self._errors: dict[str, SatrapError] = {}  # in the order received: the first is the likelier cause
        self._generation, self._step, self._loader_restarts, self._interrupts = -1, 0, 0, 0
        self._ready_until: float | None = None  # None: servers have been started since the last time
        self._settle_until: float | None = None
        self._stop_until: float | None = None
        self._setback: SatrapError | None = None  # why all workers must restart, once all have ended
        self._starting = True  # until the workers start
        self._origin: int | None = None  # the step of the snapshot from which they do
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
        """Names of the shards that have ended and are not to come back: they have left, or never joined."""
        return [name for name, role in self._roles.items() if role.aside and role.code is not None]

    def asked(self, request: Request) -> list[Action]:
        """Take a request of a user that concerns the shards, or the number of workers."""
        return (self._workers if request.command == "workers" else self._requests).ask(request)

    def has_room(self, error: SatrapError | None) -> list[Action]:
        """Take why so many workers as somebody wants could not train, None if they could."""
        return self._workers.has_room(error, _running(self._all("worker")))

    def shard_has_room(self, error: SatrapError | None) -> list[Action]:
        """Take why one more shard, which is to join, has no room, None if it has."""
        return self._requests.has_room(error, self._roles)

    def _all(self, *kinds: str) -> list[RoleState]:
        roles = [role for role in self._roles.values() if not role.aside]
        return [role for kind in kinds for role in roles if role.kind == kind]

    def heard(self, name: str, event: Event) -> list[Action]:
        """Take an event of a role."""
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
            case Stepped(progress):
                self._step = progress.step
                self._workers.stepped()
            case Finished() if self._workers.stopping:
                return []  # others go on
            case RowsMoved(moved):
                return self._requests.answered(moved, self._roles)
        return [Tell(event)] if isinstance(event, TrainingEvent) else []

    def decide(self, now: float, interrupts: int = 0) -> list[Action]:
        """Take the time in seconds, and how often the user asked the run to stop; call this often."""
        self._interrupts = interrupts
        if self.finished:
            return []
        if self._setback is not None:
            return [] if _running(self._all("worker")) else [FindSnapshot()]
        return self._start(now) if self._starting else self._supervise(now)

    def _start(self, now: float) -> list[Action]:
        """Start servers, and once all are ready, the workers."""
        if self._interrupts:
            lost = (
                "interrupted while processes were started again: the state since the newest snapshot is lost"
            )
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
            role.moved = False  # the workers get its address now
        self._roles |= {f"worker {i}": RoleState(f"worker {i}") for i in range(self._workers.workers)}
        return [StartWorkers(self._generation, self._origin)]

    def _supervise(self, now: float) -> list[Action]:
        """Keep the run alive until the workers have ended."""
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
        """Whether the workers have ended because others are to go on."""
        stopped = self.trained is not None and self.trained.result.stopped == "stopped"
        return stopped and self._workers.stopping and not self._interrupts

    def _answer_requests(self, now: float) -> list[Action]:
        if self._interrupts or self._workers.stopping:
            return []
        actions = self._requests.decide(now, self._roles)
        return actions if self._requests.busy else [*actions, *self._workers.decide(now)]

    def _restart_loaders(self) -> list[Action]:
        """Restart dead loaders at their addresses: workers ask them for the next batch."""
        actions: list[Action] = []
        if self._interrupts or self._settle_until is not None:
            return actions
        for role in self._all("loader"):
            # One that ended by itself before it was ever needed would do so again.
            dead = role.code is not None if self._generation >= 0 else role.killed
            if dead and self._loader_restarts < LOADER_RESTARTS:
                self._loader_restarts += 1
                count = f"restart {self._loader_restarts} of {LOADER_RESTARTS}"
                said = f"{role.name} {role.ending} ({role.traces}): it is started again ({count})"
                actions += [Say(said), self._start_server(role.name)]
        return actions

    def _restart_shards(self) -> list[Action]:
        """Restart, at their addresses, killed shards that have a journal, or no rows yet."""
        actions: list[Action] = []
        if not (self._starting or self._journal) or self._settle_until is not None:
            return actions
        for role in self._all("shard"):
            # One that ended by itself said why, and would do so again.
            if role.killed and self.restarts < self._keys.restarts:
                self.restarts += 1
                said = f"[{role.name}] {role.ending}; training waits for it ({self._count()})"
                actions += [self._start_server(role.name), Say(said)]
        return actions

    def _count(self) -> str:
        return f"restart {self.restarts} of {self._keys.restarts}"

    def _stop_at_interrupts(self, now: float, running: Iterable[RoleState]) -> list[Action]:
        if self._interrupts > 1:
            what = "interrupted twice: all processes were killed, and the state was not saved"
            return self._finish(InterruptedRunError(what))
        if self._interrupts and self._stop_until is None:
            self._stop_until = now + self._keys.grace
            said = Say("saving after this step; Ctrl-C again to kill")
            return [said, *(StopRole(role.name, Stop.SAVE) for role in running)]
        if self._stop_until is not None and now > self._stop_until:
            return self._finish(_too_slow(self._keys.grace))
        return []

    def _judge(self, now: float) -> list[Action]:
        """Once others have had time to follow a lost role, restart the workers or end the run."""
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
        given_up = self._requests.give_up("all workers start again", self._roles)
        given_up += self._workers.give_up(f"{error.what}; all workers start again")
        return [*given_up, *(StopRole(role.name, Stop.KILL) for role in _running(self._all("worker")))]

    def _lost(self) -> list[RoleState]:
        """Return the roles that ended unexpectedly; the likeliest cause first."""
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
        """Return the servers that processes which run already look for at another address."""
        known = SERVERS if not self._starting else ("shard",) if self._all("embedding worker") else ()
        return [role for role in self._all(*known) if role.moved]

    def _may_return(self, role: RoleState) -> bool:
        """Whether a role ended for a reason that may not recur, or has moved and can be followed."""
        if role.code is None:  # embedding workers do not start again
            return role.kind == "loader" or not self._all("embedding worker")
        match role.kind:
            case "shard":  # if its journal cannot restore it any more, the newest snapshot can
                return role.killed or self._journal
            case "worker" | "embedding worker":
                error = self._errors.get(role.name)
                # Nobody asked for an end.
                unsaved = self._workers.stopping and isinstance(error, CheckpointError)
                return role.killed or unsaved or (role.code == PEER_LOST and isinstance(error, ExchangeError))
        return False  # loaders have been restarted as often as allowed

    def restart_workers(self, step: int | None) -> list[Action]:
        """Restart lost servers, shards empty, and then all workers, from the newest snapshot, if any.

        Or have another number of workers go on from there, if the others have saved and ended for it.
        """
        error, self._setback, self.trained = self._setback, None, None
        self._errors = {name: one for name, one in self._errors.items() if not name.startswith("worker")}
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
    """Return the error about a lost role; `used`: restarts, if no more are allowed, else 0."""
    why = _CONSEQUENCES[lost.kind] if lost.ready or lost.kind == "worker" else "nothing trains without it"
    if used:
        why = f"roles were restarted {used} times before; cluster.restarts allows no more"
    advice = "its last lines above say why"
    if lost.killed:
        advice = "look for its lines above; if the system killed it, it may have run out of memory"
    if not snapshots:
        advice += "; with checkpoint.every_steps a run goes on after a death"
    return ExchangeError(f"{lost.name} {lost.ending}", where=lost.traces, why=why, fix=advice)


def _too_slow(grace: float) -> InterruptedRunError:
    return InterruptedRunError(
        f"interrupted; the workers had not stopped after {grace:g} s and were killed",
        why="the state since the newest snapshot was not saved",
        fix="raise cluster.grace",
    )


def _said(error: SatrapError, step: int | None, lost: int, count: str) -> Say:
    """Return the line about a restart of all workers, which does `lost` steps again."""
    origin = "the beginning: there is no snapshot yet" if step is None else f"the snapshot of step {step:,}"
    return Say(
        f"{error.what} ({error.where.partition(';')[0]}): all workers start again from {origin}; about "
        f"{lost:,} steps are done again ({count})"
    )


def _removal_of(lost: RoleState) -> ExchangeError:
    return ExchangeError(
        f"{lost.name} came back at another address, {lost.address}",
        where=lost.traces,
        why="the others know its former address only",
        fix="set checkpoint.every_steps: then, without embedding workers, all workers start again",
    )


def _running(roles: Iterable[RoleState]) -> list[RoleState]:
    return [role for role in roles if role.code is None]
