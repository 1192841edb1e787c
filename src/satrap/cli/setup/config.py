"""`satrap config`."""

import json

import click

from satrap.cli.options import debug_option, json_option, set_option
from satrap.errors import ConfigError


@click.command()
@click.argument("recipe", required=False)
@set_option
@json_option
@click.option("--keys", is_flag=True, help="Explain all keys of recipes instead.")
@click.option("--section", metavar="NAME", help="Explain the keys of one section, for example data.")
@debug_option
def config(
    recipe: str | None, overrides: tuple[str, ...], as_json: bool, keys: bool, section: str | None
) -> None:
    """Check RECIPE and print it with all defaults and the origin of each value."""
    from satrap import config as recipes

    if keys or section:
        click.echo(recipes.reference(section))
        return
    if recipe is None:
        raise ConfigError("a recipe is required", fix="satrap config RECIPE, or satrap config --keys")
    loaded = recipes.load(recipe, overrides)
    if as_json:
        click.echo(json.dumps({"recipe": loaded.resolved(), "origin": recipes.origins(loaded)}, indent=2))
    else:
        click.echo(recipes.annotated(loaded))
