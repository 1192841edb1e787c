"""`satrap compile`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from satrap.cli.options import debug_option, json_option


@click.command("compile")
@json_option
@debug_option
def compile_(as_json: bool) -> None:
    """Compile what runs need now, so that none waits for it later.

    The machine code is kept for this version of satrap and this processor, and found by all later commands.
    Images are built with it. Without this command, each function is compiled when it is first called.
    """
    click.echo("compiling for this processor, up to some minutes", err=True)
    from satrap.launch.compiling import compile_ahead

    done = compile_ahead()
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(
        f"compiled {done.new} functions for {done.processor} in {done.seconds:.0f} s; "
        f"{done.kept} are kept in {done.folder}"
    )
