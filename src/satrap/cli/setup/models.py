"""`satrap models`."""

import json
from dataclasses import asdict

import click

from satrap.cli.options import debug_option, json_option


@click.command()
@click.argument("name", required=False)
@json_option
@debug_option
def models(name: str | None, as_json: bool) -> None:
    """List the models that a recipe can name, or show the arguments and presets of model NAME."""
    from satrap.tools.catalog import about, catalog, listed, shown

    if name is None:
        infos = catalog()
        click.echo(json.dumps([asdict(info) for info in infos], indent=2) if as_json else listed(infos))
        return
    info = about(name)
    click.echo(json.dumps(asdict(info), indent=2) if as_json else shown(info))
