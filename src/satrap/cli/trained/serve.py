"""`satrap serve` and `satrap request`."""

from pathlib import Path
from typing import Any

import click

from satrap.cli.options import STOP_SECONDS, debug_option, set_option, stop_at_eof_option, trust_option


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--listen",
    default="127.0.0.1:8000",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free port.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the key that clients must send. Required unless HOST is a loopback address.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve OpenMetrics over HTTP at this address.")
@click.option(
    "--drain",
    "drain_seconds",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="After SIGTERM, keep answering for this time while reporting not ready, so that load balancers "
    "react.",
)
@click.option("--follow", is_flag=True, help="Serve each new snapshot of a running training.")
@click.option(
    "--log",
    metavar="URL",
    help="Log responses and their input values to this folder, as a log for data.stream.",
)
@click.option(
    "--shadow",
    metavar="DIR2",
    help="Also score each request with the model of another run, after answering it, and compare the scores.",
)
@click.option(
    "--shards",
    metavar="HOST:PORT,...",
    help="Processes of `satrap serve-shard` that hold the rows, in the order of their numbers.",
)
@click.option(
    "--name", metavar="NAME", help="Name of the model in responses; default the name of the folder."
)
@trust_option
@stop_at_eof_option(STOP_SECONDS, hidden=True)
@set_option
@debug_option
def serve(
    folder: str, overrides: tuple[str, ...], log: str | None, shards: str | None, **options: Any
) -> None:
    """Answer requests over HTTP with the scores of the trained model in run folder DIR.

    DIR may also be the feed of a run: a folder, or a URL such as s3://models/first/feed.

    POST /v1/score takes one context and many items, as JSON or Arrow; `satrap request DIR` prints a body.
    /v2 is the Open Inference Protocol. Each response has the training step of its model. --set can change the
    limits (serving.max_items=1000) and the keys that `satrap evaluate` can change.

    --shadow runs the other model in a process of the lowest priority. Metrics show how its predictions
    differ, and count the requests it is too slow for.
    """
    from satrap import launch
    from satrap.serve.run import Options, run

    overrides += () if log is None else (f"serving.log={log}",)
    overrides += () if shards is None else (f"serving.shards=[{shards}]",)
    run(launch.RunFolder.open(folder), Options(**options), overrides, click.echo)


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--input", "sources", multiple=True, metavar="FILE", help="Use the rows of this file.")
@click.option("--items", default=3, show_default=True, type=click.IntRange(min=1), help="Number of items.")
@debug_option
def request(folder: str, sources: tuple[str, ...], items: int) -> None:
    """Print a valid request for the model in run folder DIR: POST it to /v1/score of `satrap serve DIR`.

    The request has the first of the recipe's test rows, else of its validation or training rows.
    """
    import json

    from satrap import launch
    from satrap.serve.scoring.example import example_of

    click.echo(json.dumps(example_of(launch.RunFolder.open(folder), sources, items)))
