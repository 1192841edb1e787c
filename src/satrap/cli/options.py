"""Options that several commands share."""

from __future__ import annotations

import click

debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)
"""`--debug`, accepted before and after the command's name; `main` looks for it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a recipe key, for example training.mode=sync; may be repeated.",
)

output_folder_option = click.option(
    "--output", metavar="DIR", help="Run folder; default the first free runs/<recipe>-<n>."
)
