"""The `satrap` command: subcommands and exit codes (0 done, 1 failed, 2 wrong input)."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

import click

from satrap.cli.interrupt import INTERRUPTED
from satrap.cli.options import debug_option, notice
from satrap.cli.roles.embedding_worker import embedding_worker
from satrap.cli.roles.loader import loader
from satrap.cli.roles.serve_shard import serve_shard
from satrap.cli.roles.shard import shard
from satrap.cli.runs.shards import shards
from satrap.cli.runs.train import train
from satrap.cli.runs.workers import workers
from satrap.cli.setup.compile import compile_
from satrap.cli.setup.config import config
from satrap.cli.setup.deploy import deploy
from satrap.cli.setup.doctor import doctor
from satrap.cli.setup.init import init
from satrap.cli.setup.key import key
from satrap.cli.setup.models import models
from satrap.cli.setup.plan import plan
from satrap.cli.setup.prepare import prepare
from satrap.cli.setup.quickstart import quickstart
from satrap.cli.setup.tune import tune
from satrap.cli.trained.bench import bench
from satrap.cli.trained.checkpoint import checkpoint
from satrap.cli.trained.compare import compare
from satrap.cli.trained.export import export
from satrap.cli.trained.report import report
from satrap.cli.trained.scoring import evaluate, predict
from satrap.cli.trained.serve import request, serve
from satrap.cli.trained.versions import versions
from satrap.errors import ConfigError, DataError, SatrapError
from satrap.runtime.satrap_warnings import told

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class InOrder(click.Group):
    """A group that lists its commands in the order in which new users need them."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("satrap"), message="satrap %(version)s")
@debug_option
def satrap() -> None:
    """Train deep recommender models whose embedding tables outgrow any one machine."""


for command in (
    quickstart,
    init,
    prepare,
    train,
    tune,
    evaluate,
    predict,
    serve,
    request,
    versions,
    bench,
    export,
    report,
    compare,
    config,
    models,
    plan,
    doctor,
    compile_,
    deploy,
    checkpoint,
    key,
    serve_shard,
    shard,
    shards,
    workers,
    loader,
    embedding_worker,
):
    satrap.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; errors are at most four lines on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if not debug:
        sys.excepthook = _internal_error
    try:
        with told(notice):
            code = satrap.main(words, prog_name="satrap", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else DONE)
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG_INPUT)
    except SatrapError as error:
        _fail(str(error), WRONG_INPUT if isinstance(error, ConfigError | DataError) else FAILED, debug)
    except (click.Abort, KeyboardInterrupt):
        _fail(INTERRUPTED, FAILED, debug)
    except BrokenPipeError:
        # No process reads our output any more, and the flush at exit must not raise an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as error:
        _fail(f"operating system error: {error}", FAILED, debug)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _internal_error(kind: type[BaseException], error: BaseException, _: object) -> None:
    """Report a defect of satrap in two lines instead of a traceback; the process then exits with code 1."""
    print(f"error: internal error: {kind.__name__}: {error}", file=sys.stderr)
    print("  what to do: run again with --debug and report the traceback", file=sys.stderr)
