"""Serves a run: loads it, prints what it serves and where, and answers."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from satrap.checkpoint import Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.feed import published_at
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.storage import Storage
from satrap.config import Recipe
from satrap.config.serving import Serving
from satrap.data.encode import MISSING
from satrap.errors import ConfigError
from satrap.launch.folder import RunFolder
from satrap.launch.scoring import load_predictor, model_place, scoring_recipe
from satrap.openmetrics import Endpoint
from satrap.rpc import read_key, split_address
from satrap.serve.follow import Follower, FollowerStatistics
from satrap.serve.model import ServedModel
from satrap.serve.operator import authorization
from satrap.serve.scorer import Scorer
from satrap.words import counted, size

if TYPE_CHECKING:
    from satrap.serve.shadow import Shadow

NEEDED = ("starlette", "uvicorn", "orjson")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is served.

    Args:
        listen: HOST:PORT; port 0 takes a free one.
        key: file with the key that clients must send; None: none is needed.
        metrics: HOST:PORT of OpenMetrics; None: nowhere.
        drain_seconds: how long to continue after SIGTERM.
        name: of the model in answers; None: the name of the folder.
        trust: run the code in the folder of another user.
        follow: serve each new snapshot of the run.
        shadow: folder of a run that scores the same requests after they are answered; None: none does.
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
        folder: of the run.
        options: where and how.
        overrides: `key=value` texts for keys of `SCORING_KEYS`.
        say: called with each line for people.

    Raises:
        ConfigError: a package is missing, the code of another user would run, the address cannot be used, or
            the rows do not fit.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"satrap serve needs {', '.join(missing)}", fix="install it: pip install 'satrap[serve]'"
        )
    from satrap.serve.server import listening

    recipe = scoring_recipe(folder, overrides)
    if not options.trust:
        _check_owner(folder, recipe)
    series = _followed(folder, recipe) if options.follow else None
    secret = _secret(options.key)

    def load(place: str) -> ServedModel:
        predictor = load_predictor(folder, recipe, place)
        missing = recipe.sections.data.missing or MISSING
        manifest = read_manifest(Storage(place))
        name, published = options.name or folder.path.resolve().name, published_at(manifest.settings, place)
        serving = recipe.sections.serving
        return ServedModel(
            name,
            predictor,
            missing,
            manifest.id,
            published,
            precision=serving.precision,
            keep=serving.keep,
            keep_bytes=serving.keep_memory,
        )

    with listening(*split_address(options.listen), secret=secret) as listener, ExitStack() as stack:
        shadow = None
        if options.shadow is not None:  # it loads while this process does
            shadow = stack.enter_context(_shadow(RunFolder.open(options.shadow), options, overrides, say))
        place = model_place(folder, recipe) if series is None else series.place(series.latest() or 0)
        say(f"loading {_size(place)}")
        model = load(place)

        def follower(scorer: Scorer) -> Follower | None:
            if series is None:
                return None
            return Follower(series, lambda step: load(series.place(step)), scorer, notice=say)

        _answer(folder, model, listener, recipe.sections.serving, shadow, options, follower, say)
    say("ended: every request was answered")


def _shadow(
    folder: RunFolder, options: Options, overrides: Sequence[str], say: Callable[[str], object]
) -> Shadow:
    """Return the shadow that serves a run; it follows that if this server follows its own, and it can."""
    from satrap.serve.shadow import Shadow

    recipe = scoring_recipe(folder, overrides)
    if not options.trust:
        _check_owner(folder, recipe)
    arguments = ["serve", str(folder), "--listen", "127.0.0.1:0"]
    if options.key is not None:
        arguments += ["--key", str(options.key)]
    arguments += [word for override in overrides for word in ("--set", override)]
    arguments += ["--trust"] * options.trust
    if options.follow:
        with suppress(ConfigError):
            _followed(folder, recipe)
            arguments.append("--follow")
    return Shadow(arguments, authorization(options.key), say=say)


def _followed(folder: RunFolder, recipe: Recipe) -> Series:
    """Return the feed of a run, else its snapshots; raise `ConfigError` if there is nothing to follow."""
    keys = recipe.sections.checkpoint
    if recipe.sections.publish.active:
        series = Series(folder.feed_place(recipe))
    elif keys.every_steps is not None or keys.delta_every_steps is not None:
        series = Series(folder.snapshots(recipe))
    else:
        raise ConfigError(
            "the run publishes nothing, so there is nothing to follow",
            where=str(folder),
            fix="train with publish.every: 5s, or serve without --follow",
        )
    if series.latest() is None:
        raise ConfigError(
            "there is no version yet",
            where=series.url,
            fix="wait until the run has published one",
        )
    return series


def _answer(
    folder: RunFolder,
    model: ServedModel,
    listener: socket.socket,
    limits: Serving,
    shadow: Shadow | None,
    options: Options,
    follower: Callable[[Scorer], Follower | None],
    say: Callable[[str], object],
) -> None:
    from satrap.serve.app import Application
    from satrap.serve.metrics import server_values
    from satrap.serve.server import Server

    with ExitStack() as stack:
        scorer = stack.enter_context(Scorer(model, max_queue=limits.max_queue))
        application = Application(scorer, limits, secret=_secret(options.key))
        application.shadow = shadow
        counters = FollowerStatistics()
        if (following := follower(scorer)) is not None:
            counters = stack.enter_context(following).statistics
            application.versions.follower = following
        metrics = None
        if options.metrics:
            endpoint = Endpoint(
                *split_address(options.metrics),
                lambda: server_values(scorer, application, counters),
                busy=lambda: application.busy,
            )
            metrics = stack.enter_context(endpoint).address

        def started() -> None:
            for line in _introduction(folder, model, _url(listener), metrics):
                say(line)

        Server(application, listener, drain_seconds=options.drain_seconds).run(started)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_owner(folder: RunFolder, recipe: Recipe) -> None:
    """Raise `ConfigError` if code in the folder of another user would run."""
    if recipe.own_code() and folder.path.stat().st_uid != os.geteuid():
        raise ConfigError(
            "the run has code of its own, and its folder belongs to another user",
            where=str(folder),
            why="serving it would execute that code",
            fix=f"read the code in {folder.code}; if you trust it, add --trust",
        )


def _secret(key: Path | None) -> bytes | None:
    """Return the text of a key file, if any; raise `ConfigError` if it is not one, or others may read it."""
    if key is None:
        return None
    read_key(key)
    return key.read_bytes().strip()


def _size(place: str) -> str:
    """Return how many rows a saved model has, and what they take on the disk."""
    members = [manifest for _, manifest in open_chain(place).members]
    rows = sum(sum(manifest.rows().values()) for manifest in members)
    return f"{counted(rows, 'row')}, {size(sum(manifest.bytes for manifest in members))}"


def _introduction(folder: RunFolder, model: ServedModel, url: str, metrics: str | None) -> list[str]:
    """Return the lines that say what is served, and where."""
    rows = model.rows()
    lines = {
        "serving": f"{model.name}, step {model.step:,}",
        "rows": f"{sum(rows.values()):,} in {counted(len(rows), 'table')}, {size(model.row_bytes())}",
        "network": counted(model.weights(), "weight"),
        "scores": f"{url}/v1/score",
        "protocol": f"{url}/v2/models/{model.name}  (Open Inference Protocol)",
        **({"metrics": f"http://{metrics}/metrics"} if metrics else {}),
        "try it": f"satrap request {shlex.quote(str(folder))} | curl -sd @- {url}/v1/score",
    }
    return [f"{name:<9} {text}" for name, text in lines.items()]
