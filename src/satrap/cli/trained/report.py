"""`satrap report`."""

import json
from pathlib import Path

import click

from satrap.cli.options import debug_option, json_option, notice

PAGE = "report.html"


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--output",
    metavar="FILE",
    help=f"The page, ending in .html; default RUN/{PAGE}, or {PAGE} in the current folder for several runs.",
)
@click.option("--quick", is_flag=True, help="Only read the run's files; do not score rows.")
@json_option
@debug_option
def report(folders: tuple[str, ...], output: str | None, quick: bool, as_json: bool) -> None:
    """Write an HTML page about one run, or about several side by side.

    It has curves, metrics, ROC, calibration, gain by feature, tables and time by stage, and works offline.
    For ROC, calibration and gain, the model scores the validation rows, else the test rows. --json prints the
    numbers and writes a page only with --output.
    """
    from satrap.errors import ConfigError
    from satrap.launch.folder.run_folder import write_whole
    from satrap.tools.report_page import page
    from satrap.tools.report_page.read_run import report as report_of

    target = Path(output or (Path(folders[0]) / PAGE if len(folders) == 1 else PAGE))
    if target.suffix != ".html":
        raise ConfigError(
            f"--output {target.name!r} does not end in .html", fix="give --output a name that ends in .html"
        )
    runs = [report_of(path, score=not quick, notice=notice) for path in folders]
    if as_json:
        click.echo(json.dumps([run.to_dict() for run in runs], indent=2))
    if output or not as_json:
        write_whole(target, page(runs))
        click.echo(f"report: {target}", err=as_json)
