"""`satrap evaluate` and `satrap predict`."""

import json
from collections.abc import Mapping

import click

from satrap.cli.options import debug_option, json_option, notice, set_option
from satrap.runtime.formatting import counted

MANY_UNSEEN = 0.5
"""Above this share of unseen ids, values are probably formatted differently than in training."""


step_option = click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="Use the snapshot, or the feed's version, of this training step. Default: the trained model.",
)


def _warn_of_unseen(shares: Mapping[str, float]) -> None:
    if many := [f"{table} {share:.0%}" for table, share in shares.items() if share > MANY_UNSEEN]:
        notice(
            f"warning: most ids are not in the model: {', '.join(many)}\n"
            "  why it matters: the model has not been trained on these ids, so the scores mean little\n"
            "  what to do: check that these columns have the same format as in the training data"
        )


def _only_a_warning(key: str) -> bool:
    """Whether a metric means nothing while it is 0; `--json` has it in any case."""
    return key.endswith(("error_bound", "gauc_skipped")) or key.startswith("unseen/")


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
    """Print the metrics of the trained model in run folder DIR, and the shares of unseen ids, if any.

    Standard error shows which rows are scored. The recipe's embedding.memory and embedding.tier limit memory.
    --set can change these keys, embedding.eviction and training.device.
    """
    from satrap import launch
    from satrap.report.history import finite
    from satrap.runtime.formatting import decimals, metric_name

    shares: dict[str, float] = {}
    metrics = launch.evaluate(
        launch.RunFolder.open(folder), sources, overrides, shares=shares.update, notice=notice, step=step
    )
    _warn_of_unseen(shares)
    metrics |= {f"unseen/{table}": share for table, share in shares.items()}
    if as_json:
        click.echo(json.dumps(finite(metrics), indent=2))
        return
    worth_a_line = {key: value for key, value in metrics.items() if value or not _only_a_warning(key)}
    width = max(len(metric_name(key)) for key in worth_a_line)
    for key, value in worth_a_line.items():
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

    The output has the input's columns and the predictions: <label>_probability for a binary label,
    <label>_probability_<class> per class for a multiclass label, <label>_prediction for a regression label.
    Columns of several files are matched by name, and missing columns are empty. --set works as in `satrap
    evaluate`.
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
