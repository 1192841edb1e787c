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
    help="File with the key of the server, if it has one.",
)


@click.group()
def versions() -> None:
    """List the versions of a server that follows a run, and keep or change the one it answers with.

    URL is that of the server, for example http://127.0.0.1:8000.
    """


@versions.command("list")
@server_argument
@key_option
@json_option
@debug_option
def list_versions(url: str, key: Path | None, as_json: bool) -> None:
    """List the versions that the server at URL could answer with; an arrow points at the one it does.

    Going back to one in memory takes less than a second, to another one as long as a start.
    """
    said = _asked(url, "", key)
    if as_json:
        import json

        click.echo(json.dumps(said))
        return
    for step in sorted({*said["versions"], *said["earlier"], said["step"]}):
        served = f" <- served{', pinned' if said['pinned'] else ''}" if step == said["step"] else ""
        click.echo(f"{step}{served}{' (in memory)' if step in said['earlier'] else ''}")


@versions.command()
@server_argument
@key_option
@debug_option
def pin(url: str, key: Path | None) -> None:
    """Have the server at URL keep the version it answers with."""
    click.echo(f"step {_asked(url, 'pin', key)['step']} is kept until satrap versions release {url}")


@versions.command()
@server_argument
@click.option("--to", "step", required=True, type=click.IntRange(min=0), metavar="STEP", help="Which one.")
@key_option
@debug_option
def rollback(url: str, step: int, key: Path | None) -> None:
    """Have the server at URL answer with the version of STEP, and keep it."""
    _asked(url, "rollback", key, {"step": step})
    click.echo(f"step {step} is served, and kept until satrap versions release {url}")


@versions.command()
@server_argument
@key_option
@debug_option
def release(url: str, key: Path | None) -> None:
    """Have the server at URL follow its run again."""
    click.echo(f"step {_asked(url, 'release', key)['step']} is served until a later one is there")


def _asked(url: str, action: str, key: Path | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    from satrap.serve.operator import ask

    return ask(url, action, key, body or {})
