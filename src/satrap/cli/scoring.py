"""`satrap evaluate` and `satrap predict`."""

import json
from collections.abc import Mapping

import click

from satrap.cli.options import debug_option, json_option, notice, set_option
from satrap.words import counted

MANY_UNSEEN = 0.5
"""With a larger share of unseen ids, the values are probably written differently than in training."""


step_option = click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="Use the snapshot, or the version of the feed, of this training step. Default: the trained model.",
)


def _warn_of_unseen(shares: Mapping[str, float]) -> None:
    if many := [f"{table} {share:.0%}" for table, share in shares.items() if share > MANY_UNSEEN]:
        notice(
            f"warning: most ids have never been trained: {', '.join(many)}\n"
            "  why it matters: the model knows nothing about them, so the scores say little\n"
            "  what to do: check that these columns are written as in the training data"
        )


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--input",
    "sources",
    multiple=True,
    metavar="FILE",
    help="Rows with labels; may be repeated. Default: the recipe's test rows, else its validation rows.",
)
@step_option
@set_option
@json_option
@debug_option
def evaluate(
    folder: str, sources: tuple[str, ...], step: int | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Print the metrics of the trained model in run folder DIR, and the share of ids it has never seen.

    Standard error says which rows are scored. embedding.memory and embedding.tier of its recipe limit memory;
    --set can change them, embedding.eviction and training.device.
    """
    from satrap import launch
    from satrap.report.history import finite
    from satrap.words import decimals, metric_name

    shares: dict[str, float] = {}
    metrics = launch.evaluate(
        launch.RunFolder.open(folder), sources, overrides, shares=shares.update, notice=notice, step=step
    )
    _warn_of_unseen(shares)
    metrics |= {f"unseen/{table}": share for table, share in shares.items()}
    if as_json:
        click.echo(json.dumps(finite(metrics), indent=2))
        return
    width = max(len(metric_name(key)) for key in metrics)
    for key, value in metrics.items():
        shown = f"{value:,}" if isinstance(value, int) else decimals(value)
        click.echo(f"{metric_name(key):<{width}}  {shown}")


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--input", "sources", multiple=True, required=True, metavar="FILE", help="Rows to score; may be repeated."
)
@click.option("--output", required=True, metavar="FILE", help="New file: .parquet, .csv or .csv.gz.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COL",
    help="Column of the input to write, such as an id; may be repeated. Default: all.",
)
@step_option
@set_option
@debug_option
def predict(
    folder: str,
    sources: tuple[str, ...],
    output: str,
    keep: tuple[str, ...],
    step: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Score rows with the trained model in run folder DIR.

    The output has the input's columns and the predictions: <label>_probability, of a multiclass label one per
    class (<label>_probability_<class>), of a regression label <label>_prediction. Columns are put together by
    their names; one that a file lacks is empty in its rows. --set works as for `satrap evaluate`.
    """
    from satrap import launch

    count = launch.predict(
        launch.RunFolder.open(folder),
        sources,
        output,
        overrides,
        columns=keep or None,
        shares=_warn_of_unseen,
        step=step,
    )
    click.echo(f"{counted(count, 'row')} written to {output}")
