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
    """Compile the functions of training runs now, so that no run waits for it later.

    The machine code is cached for this version of satrap and this CPU, and all later commands use it. Use it
    to build container images. Without this command, each function is compiled at its first call.
    """
    click.echo("compiling for this CPU; this takes up to a few minutes", err=True)
    from satrap.launch.compile_kernels import compile_ahead

    done = compile_ahead()
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(
        f"compiled {done.new} functions for {done.processor} in {done.seconds:.0f} s; "
        f"{done.kept} are kept in {done.folder}"
    )
