"""Options shared by several commands."""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from satrap.errors import ConfigError, DataError
from satrap.runtime.events import Failed, Outlet, Report

F = TypeVar("F", bound=Callable[..., object])

STOP_SECONDS = 10.0
"""Seconds for a server to end after its standard input closes."""

SAVE_SECONDS = 600.0
"""Seconds for a run to save and end after its standard input closes; `cluster.grace` ends most runs
earlier."""

debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)
"""`--debug`, before or after the command's name; `main` searches for it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a recipe key, for example training.mode=sync; may be repeated.",
)

trust_option = click.option(
    "--trust", is_flag=True, help="Allow the code in a folder that another user owns."
)


def notice(text: str) -> None:
    """Print a message that is not part of the output."""
    click.echo(text, err=True)


output_folder_option = click.option(
    "--output", metavar="DIR", help="Run folder; default the first unused runs/<recipe>-<n>."
)


def byte_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of an option such as 512MiB; None without the option."""
    from satrap.config.keys.values import as_bytes

    try:
        return None if value is None else int(str(as_bytes(int(value) if value.isdigit() else value)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def stop_at_eof_option(seconds: float, *, hidden: bool = False) -> Callable[[F], F]:
    """Return the option `--stop-at-eof`: SIGTERM when the parent process ends, SIGKILL `seconds` later."""

    def asked(_: click.Context, __: click.Parameter, given: bool) -> None:
        if given:
            threading.Thread(target=_stop_at_eof, args=(seconds,), name="satrap-input", daemon=True).start()

    return click.option(
        "--stop-at-eof",
        is_flag=True,
        expose_value=False,
        callback=asked,
        hidden=hidden,
        help="Stop when standard input ends, that is, with the parent process.",
    )


def _stop_at_eof(seconds: float) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _report(_: click.Context, __: click.Parameter, asked: bool) -> Report:
    return Outlet().send if asked else lambda _: None


def server_options(command: F) -> F:
    """Add the options of a listening role: --listen, --key, --stop-at-eof, --events, --metrics."""
    options = (
        click.option(
            "--listen",
            required=True,
            metavar="HOST:PORT",
            help="Address to listen on; port 0 picks a free port.",
        ),
        click.option(
            "--key",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="File with the cluster's key, mode 0600 or 0440. Required unless HOST is a loopback "
            "address.",
        ),
        stop_at_eof_option(STOP_SECONDS),
        click.option(
            "--events",
            "report",
            is_flag=True,
            callback=_report,
            help="Report to the parent process: JSON on standard output, text on standard error.",
        ),
        click.option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve OpenMetrics over HTTP at this address, without access control; port 0 picks a free "
            "port.",
        ),
    )
    decorated: Callable[..., object] = _telling(command)
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)


def _telling(command: F) -> F:
    """Make a role report user errors, so that its parent process can show the cause."""

    @functools.wraps(command)
    def reporting(*arguments: Any, report: Report, **named: Any) -> object:
        try:
            return command(*arguments, report=report, **named)
        except (ConfigError, DataError) as error:
            report(Failed(error))
            raise

    return cast(F, reporting)
