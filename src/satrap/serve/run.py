"""Serves a run: loads the model, prints its summary and addresses, and answers requests."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from satrap.checkpoint import Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.feed import published_at
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.config import Recipe
from satrap.data.encode.encoder import MISSING
from satrap.errors import CheckpointError, ConfigError
from satrap.exchange import LocalExchange
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_served, model_place, scoring_recipe
from satrap.openmetrics import Endpoint
from satrap.rpc import read_key, split_address
from satrap.runtime.formatting import counted, size
from satrap.serve.operator import authorization
from satrap.serve.request_log import RequestLog
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.shards.connections import ShardLinks
from satrap.serve.shards.kept_rows import Version
from satrap.serve.shards.sharded import ShardedModel, ShardedRows, ShardsFollower
from satrap.serve.versions.follow import Follower
from satrap.serve.versions.watch import FollowerStatistics, newest
from satrap.store import Shard

if TYPE_CHECKING:
    from satrap.serve.http.app import Application
    from satrap.serve.shadow import Shadow

NEEDED = ("starlette", "uvicorn", "orjson")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a server.

    Args:
        listen: HOST:PORT; port 0 selects a free port.
        key: file with the key that clients must send; None: no key is needed.
        metrics: HOST:PORT of the OpenMetrics endpoint; None: no endpoint.
        drain_seconds: how long to continue after SIGTERM.
        name: name of the model in answers; None: the name of the folder.
        trust: run the code in the folder even if another user owns it.
        follow: serve each new version of the run.
        shadow: folder of a run that scores the same requests after they are answered; None: no shadow.
    """

    listen: str
    key: Path | None = None
    metrics: str | None = None
    drain_seconds: float = 0.0
    name: str | None = None
    trust: bool = False
    follow: bool = False
    shadow: str | None = None


def run(folder: RunFolder, options: Options, overrides: Sequence[str], say: Callable[[str], object]) -> None:
    """Serve the model of a run until SIGTERM or SIGINT.

    Args:
        folder: the run folder.
        options: options of the server.
        overrides: `key=value` texts for keys of `SCORING_KEYS`.
        say: called with each line to print.

    Raises:
        ConfigError: a package is missing, another user's code would run, the address cannot be used, or the
            rows do not fit in memory.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"satrap serve needs {', '.join(missing)}", fix="run pip install 'satrap[serve]'")
    from satrap.serve.http.server import listening

    loaded = Loaded(folder, options, overrides, say)
    with listening(*split_address(options.listen), secret=loaded.secret) as listener, ExitStack() as stack:
        shadow = None
        if options.shadow is not None:  # the shadow and this process load concurrently
            shadow = stack.enter_context(_shadow(RunFolder.open(options.shadow), options, overrides, say))
        _answer(loaded, listener, shadow, options, say)
    say("stopped: all requests were answered")


class Loaded:
    """Loads the model of a run to serve, and makes its follower.

    Args:
        folder: the run folder.
        options: options of the server; `listen`, `metrics` and `drain_seconds` are ignored.
        overrides: `key=value` texts for keys of `SCORING_KEYS`.
        say: called with each line to print.

    Attributes:
        folder: see the argument.
        limits: the recipe's section `serving`.
        secret: key that clients must send; None: no key is needed.

    Raises:
        ConfigError: see `run`.
    """

    def __init__(
        self, folder: RunFolder, options: Options, overrides: Sequence[str], say: Callable[[str], object]
    ) -> None:
        self.folder, self._say = folder, say
        self._recipe = recipe = scoring_recipe(folder, overrides)
        if not options.trust:
            check_owner(folder, recipe)
        self._series = followed(folder, recipe) if options.follow else None
        self._links: ShardLinks | None = None
        self._name = options.name or folder.name
        self.limits = recipe.sections.serving
        self.secret = _secret(options.key)

    def model(self) -> ServedModel:
        """Load the trained model or, with `follow`, the newest version."""
        if self.limits.shards:
            return self._sharded()
        if self._series is None:
            return self._first(model_place(self.folder, self._recipe))
        return newest(self._series, self._first)

    def _first(self, place: str) -> ServedModel:
        self._say(f"loading {size_of(place)}")
        return self._load(place)

    def _sharded(self) -> ServedModel:
        """Load the network of the trained model or, with `follow`, of the newest version on all shards."""
        key = None if self.limits.shards_key is None else read_key(Path(self.limits.shards_key))
        links, series, place = ShardLinks(self.limits.shards, key), self._series, ""
        model = "" if series is not None else model_place(self.folder, self._recipe)

        def chosen(common: list[Version]) -> bool:
            nonlocal place
            for version in reversed(common):
                place = model if series is None else series.place(version.step)
                with suppress(CheckpointError):
                    if read_manifest(Storage(place)).id == version.id:
                        return True
            return False

        with ExitStack() as stack:
            stack.enter_context(links).wait(chosen, self._say)
            version = read_manifest(Storage(place)).id
            loaded = self._load(place, partial(ShardedRows, links=links, version=version), ShardedModel)
            self._links = links
            stack.pop_all()  # the model closes the links
        return loaded

    def _load(
        self,
        place: str,
        exchange: Callable[[Shard], LocalExchange] = LocalExchange,
        make: type[ServedModel] = ServedModel,
    ) -> ServedModel:
        empty = make is ShardedModel
        predictor = load_served(self.folder, self._recipe, place, exchange, empty=empty)
        missing = self._recipe.sections.data.missing or MISSING
        manifest = read_manifest(Storage(place))
        published = published_at(manifest.settings, place)
        return make(
            self._name,
            predictor,
            missing,
            manifest.id,
            published,
            precision=self.limits.precision,
            keep=self.limits.keep,
            keep_bytes=self.limits.keep_memory,
        )

    @contextmanager
    def attended(self, scorer: Scorer, application: Application) -> Iterator[FollowerStatistics]:
        """Until the block ends, follow the run and log answers, as far as the options enable these."""
        series, limits = self._series, self.limits
        with ExitStack() as stack:
            if limits.log is not None:
                log = RequestLog(limits.log, share=limits.log_share, notice=self._say)
                application.log = stack.enter_context(log)
            if series is None:
                yield FollowerStatistics()
                return
            if self._links is None:
                load = lambda step: self._load(series.place(step))  # noqa: E731
                follower = Follower(series, load, scorer, notice=self._say)
            else:
                follower = ShardsFollower(series, self._links, scorer, notice=self._say)
            application.versions.follower = stack.enter_context(follower)
            yield follower.statistics


def _shadow(
    folder: RunFolder, options: Options, overrides: Sequence[str], say: Callable[[str], object]
) -> Shadow:
    """Return a shadow that serves a run; with `follow`, it follows that run if the run publishes versions."""
    from satrap.serve.shadow import Shadow

    recipe = scoring_recipe(folder, overrides)
    if not options.trust:
        check_owner(folder, recipe)
    arguments = ["serve", str(folder), "--listen", "127.0.0.1:0"]
    if options.key is not None:
        arguments += ["--key", str(options.key)]
    # A shadow writes no request log, and the shards hold the rows of another model.
    inherited = [text for text in overrides if not text.startswith(("serving.log", "serving.shards"))]
    arguments += [word for override in inherited for word in ("--set", override)]
    arguments += ["--trust"] * options.trust
    if options.follow:
        with suppress(ConfigError):
            followed(folder, recipe)
            arguments.append("--follow")
    return Shadow(arguments, authorization(options.key), say=say)


def followed(folder: RunFolder, recipe: Recipe) -> Series:
    """Return the feed of a run or else its snapshots; raise `ConfigError` if the run has neither."""
    keys = recipe.sections.checkpoint
    if recipe.sections.publish.active:
        series = Series(folder.feed_place(recipe))
    elif keys.every_steps is not None or keys.delta_every_steps is not None:
        series = Series(folder.snapshots(recipe))
    else:
        raise ConfigError(
            "the run publishes nothing, so its versions cannot be followed",
            where=str(folder),
            fix="train with publish.every: 5s, or serve without --follow",
        )
    if series.latest() is None:
        raise ConfigError(
            "the run has no version to serve yet",
            where=series.url,
            fix="wait until the run has published a version",
        )
    return series


def _answer(
    loaded: Loaded,
    listener: socket.socket,
    shadow: Shadow | None,
    options: Options,
    say: Callable[[str], object],
) -> None:
    from satrap.serve.http.app import Application
    from satrap.serve.http.server import ScoringServer
    from satrap.serve.metrics import server_values

    model = loaded.model()
    with ExitStack() as stack:
        scorer = stack.enter_context(Scorer(model, max_queue=loaded.limits.max_queue))
        application = Application(scorer, loaded.limits, secret=loaded.secret)
        application.shadow = shadow
        counters = stack.enter_context(loaded.attended(scorer, application))
        metrics = None
        if options.metrics:
            endpoint = Endpoint(
                *split_address(options.metrics),
                lambda: server_values(scorer, application, counters),
                busy=lambda: application.busy,
            )
            metrics = stack.enter_context(endpoint).address

        def started() -> None:
            for line in _introduction(loaded.folder, model, _url(listener), metrics):
                say(line)

        ScoringServer(application, listener, drain_seconds=options.drain_seconds).run(started)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_owner(folder: RunFolder, recipe: Recipe) -> None:
    """Raise `ConfigError` if the run has custom code and another user owns the folder."""
    if recipe.own_code() and folder.path.stat().st_uid != os.geteuid():
        raise ConfigError(
            "the run has custom code, and its folder belongs to another user",
            where=str(folder),
            why="serving the run would execute that user's code",
            fix=f"review the code in {folder.code}; if you trust it, add --trust",
        )


def _secret(key: Path | None) -> bytes | None:
    """Return the text of a key file, if any; raise `ConfigError` if it is invalid or readable by others."""
    if key is None:
        return None
    read_key(key)
    return key.read_bytes().strip()


def size_of(place: str) -> str:
    """Return the number of rows of a saved model, and its size on disk, as text."""
    members = [manifest for _, manifest in open_chain(place).members]
    rows = sum(sum(manifest.rows().values()) for manifest in members)
    return f"{counted(rows, 'row')}, {size(sum(manifest.bytes for manifest in members))}"


def _introduction(folder: RunFolder, model: ServedModel, url: str, metrics: str | None) -> list[str]:
    """Return the lines with the model's summary and addresses."""
    rows, arguments = model.rows(), shlex.quote(str(folder)) + " --input FILE" * (not folder.knows_rows())
    lines = {
        "serving": f"{model.name}, step {model.step:,}",
        "rows": f"{sum(rows.values()):,} in {counted(len(rows), 'table')}, {size(model.stored()[0])}",
        "network": counted(model.weights(), "weight"),
        "scores": f"{url}/v1/score",
        **({"vectors": f"{url}/v1/vectors/{' and '.join(model.towers)}"} if model.towers else {}),
        "protocol": f"{url}/v2/models/{model.name}  (Open Inference Protocol)",
        **({"metrics": f"http://{metrics}/metrics"} if metrics else {}),
        "try it": f"satrap request {arguments} | curl -sd @- {url}/v1/score",
    }
    return [f"{name:<9} {text}" for name, text in lines.items()]
