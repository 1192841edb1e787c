"""Options that several commands share."""

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
from satrap.events import Failed, Outlet, Report

F = TypeVar("F", bound=Callable[..., object])

STOP_SECONDS = 10.0
"""Time for a server to end after its standard input did."""

SAVE_SECONDS = 600.0
"""Time for a run to save and end after its standard input did; `cluster.grace` ends most runs earlier."""

debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)
"""`--debug`, before or after the command's name; `main` looks for it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a recipe key, for example training.mode=sync; may be repeated.",
)

trust_option = click.option("--trust", is_flag=True, help="Run the code in the folder of another user.")


def notice(text: str) -> None:
    """Say something that is not part of the answer."""
    click.echo(text, err=True)


output_folder_option = click.option(
    "--output", metavar="DIR", help="Run folder; default the first free runs/<recipe>-<n>."
)


def byte_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of an option such as 512MiB; None if it is not given."""
    from satrap.config.values import as_bytes

    try:
        return None if value is None else int(str(as_bytes(int(value) if value.isdigit() else value)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def stop_at_eof_option(seconds: float, *, hidden: bool = False) -> Callable[[F], F]:
    """Return the option `--stop-at-eof`: end by SIGTERM with the parent process, killed after `seconds`."""

    def asked(_: click.Context, __: click.Parameter, given: bool) -> None:
        if given:
            threading.Thread(target=_stop_at_eof, args=(seconds,), name="satrap-input", daemon=True).start()

    return click.option(
        "--stop-at-eof",
        is_flag=True,
        expose_value=False,
        callback=asked,
        hidden=hidden,
        help="Stop when standard input ends, with the parent process.",
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
    """Add the options of a role that listens: --listen, --key, --stop-at-eof, --events, --metrics."""
    options = (
        click.option(
            "--listen", required=True, metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."
        ),
        click.option(
            "--key",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="File with the cluster's key, mode 0600 or 0440; needed unless HOST is a loopback address.",
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
            help="Serve OpenMetrics over HTTP to whoever reaches this address; port 0 takes a free one.",
        ),
    )
    told: Callable[..., object] = _telling(command)
    for option in reversed(options):
        told = option(told)
    return cast(F, told)


def _telling(command: F) -> F:
    """Have a role report a mistake of the user, so that whoever started it can name the cause."""

    @functools.wraps(command)
    def told(*arguments: Any, report: Report, **named: Any) -> object:
        try:
            return command(*arguments, report=report, **named)
        except (ConfigError, DataError) as error:
            report(Failed(error))
            raise

    return cast(F, told)
