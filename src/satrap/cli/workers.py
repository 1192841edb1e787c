"""`satrap workers`: changes how many workers a run has while it trains."""

import click

from satrap.cli.options import debug_option, json_option
from satrap.cli.requests import ask


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("number", metavar="N", type=click.IntRange(min=1))
@json_option
@debug_option
def workers(run: str, number: int, as_json: bool) -> None:
    """Have N workers go on with a run that trains.

    RUN is the run folder. All workers save after their step and end, and N start from that snapshot; shards
    and loaders stay. The command waits until they train. With data.global_batch they take the same steps.
    """
    answer = ask(run, "workers", number, as_json=as_json)
    if answer is not None:
        click.echo(answer["said"])
