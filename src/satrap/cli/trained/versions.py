"""`satrap versions`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from satrap.cli.options import debug_option, json_option

server_argument = click.argument("url", metavar="URL")
key_option = click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the server's key, if it has one.",
)


@click.group()
def versions() -> None:
    """List the versions of a server that follows a run, and pin or change the served version.

    URL is the server's address, for example http://127.0.0.1:8000.
    """


@versions.command("list")
@server_argument
@key_option
@json_option
@debug_option
def list_versions(url: str, key: Path | None, as_json: bool) -> None:
    """List the versions that the server at URL can serve; an arrow marks the served version.

    A rollback to a version in memory takes less than a second, to another version as long as a start.
    """
    status = _asked(url, "", key)
    if as_json:
        import json

        click.echo(json.dumps(status))
        return
    for step in sorted({*status["versions"], *status["earlier"], status["step"]}):
        served = f" <- served{', pinned' if status['pinned'] else ''}" if step == status["step"] else ""
        click.echo(f"{step}{served}{' (in memory)' if step in status['earlier'] else ''}")


@versions.command()
@server_argument
@key_option
@debug_option
def pin(url: str, key: Path | None) -> None:
    """Pin the version that the server at URL serves."""
    click.echo(f"step {_asked(url, 'pin', key)['step']} is pinned until satrap versions release {url}")


@versions.command()
@server_argument
@click.option(
    "--to", "step", required=True, type=click.IntRange(min=0), metavar="STEP", help="Version to serve."
)
@key_option
@debug_option
def rollback(url: str, step: int, key: Path | None) -> None:
    """Make the server at URL serve the version of STEP, and pin it."""
    _asked(url, "rollback", key, {"step": step})
    click.echo(f"step {step} is served, and pinned until satrap versions release {url}")


@versions.command()
@server_argument
@key_option
@debug_option
def release(url: str, key: Path | None) -> None:
    """Make the server at URL follow its run again."""
    click.echo(f"step {_asked(url, 'release', key)['step']} is served until a later version is available")


def _asked(url: str, action: str, key: Path | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    from satrap.serve.operator import ask

    return ask(url, action, key, body or {})
