"""Shards of served rows in this process, and a server that asks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from satrap.config.keys.serving import ServingKeys
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.run import Loaded, Options
from satrap.serve.shards.process import RowsServer, ShardOptions
from satrap.serve.shards.sharded import ShardsFollower
from tests.serve.followed import eventually
from tests.serve.served import Served, served


def shard(
    run: Path, number: int, shards: int, *, follow: bool = True, listen: str = "127.0.0.1:0"
) -> RowsServer:
    """Load the rows of a shard."""
    options = ShardOptions(listen=listen, number=number, shards=shards, follow=follow)
    return RowsServer.load(RunFolder.open(run), options, (), lambda _: None)


@contextmanager
def serving(one: RowsServer, *, follow: bool = True) -> Iterator[RowsServer]:
    """Have a shard answer; it need not follow."""
    with ExitStack() as stack:
        stack.callback(one.service.free)
        if follow and one.follower is not None:
            stack.enter_context(one.follower)
        stack.enter_context(one.server)
        yield one


@contextmanager
def asking(
    run: Path, addresses: Sequence[str], *, follow: bool = True
) -> Iterator[tuple[Served, ShardsFollower | None]]:
    """Have a server ask shards."""
    options = Options(listen="127.0.0.1:0", follow=follow)
    overrides = [f"serving.shards=[{','.join(addresses)}]", "serving.deadline=60"]
    loaded = Loaded(RunFolder.open(run), options, overrides, lambda _: None)
    with (
        served(loaded.model(), ServingKeys(deadline=60.0)) as server,
        loaded.attended(server.scorer, server.application),
    ):
        yield server, server.application.versions.follower  # type: ignore[misc]


@contextmanager
def sharded(run: Path, shards: int = 2) -> Iterator[tuple[list[RowsServer], Served]]:
    """Have shards that follow a run, and a server that asks them."""
    with ExitStack() as stack:
        every = [stack.enter_context(serving(shard(run, number, shards))) for number in range(shards)]
        addresses = [one.server.address for one in every]
        server, _ = stack.enter_context(asking(run, addresses))
        yield every, server


def at_step(server: Served, step: int) -> None:
    """Wait until a server serves a step."""
    eventually(lambda: server.scorer.model.step == step)
