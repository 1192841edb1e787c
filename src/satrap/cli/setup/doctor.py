"""`satrap doctor`."""

import json
from dataclasses import asdict

import click

from satrap.cli.options import debug_option, json_option, set_option


@click.command()
@click.argument("recipe", required=False)
@set_option
@json_option
@debug_option
def doctor(recipe: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check this machine, optionally for RECIPE, and recommend changes.

    Checks versions, cores and threads, memory, limits, disk, loopback and GPU, and trains for three seconds.
    The exit code is 1 if something will not work. The output contains no names of machines, users or files,
    unless an error is about them.
    """
    from satrap.config import load
    from satrap.tools.doctor import examine

    findings = []
    for finding in examine(load(recipe, overrides) if recipe else None):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.level:<8} {finding.check:<20} {finding.found}")
            if finding.fix and finding.level != "ok":
                click.echo(f"{'':<8} what to do: {finding.fix}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    return int(any(finding.level == "error" for finding in findings))
