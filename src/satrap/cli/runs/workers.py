"""`satrap workers`: changes the number of workers of a running training."""

import click

from satrap.cli.options import debug_option, json_option
from satrap.cli.runs.requests import ask


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("number", metavar="N", type=click.IntRange(min=1))
@json_option
@debug_option
def workers(run: str, number: int, as_json: bool) -> None:
    """Continue a running training with N workers.

    RUN is the run folder. All workers save after their current step and end, and N workers resume from this
    snapshot. Shards and loaders keep running. The command waits until the new workers train. With
    data.global_batch, the steps do not depend on N.
    """
    answer = ask(run, "workers", number, as_json=as_json)
    if answer is not None:
        click.echo(answer["said"])
