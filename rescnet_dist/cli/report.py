"""The command `rescnet report`."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import click

from rescnet_dist.cli.clusters import working
from rescnet_dist.cli.files import check_folder, finished_file
from rescnet_dist.cli.options import SHOW
from rescnet_dist.dashboard.evaluation import MAX_EVALUATION_IMAGES
from rescnet_dist.dashboard.render import REPORT_FORMATS, render_report
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.errors import RescnetError

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}


@click.command("report", **SHOW)
@click.argument("run_url", metavar="RUN")
@click.option(
    "--output", "-o",
    help="file to write, - for standard output  [default: NAME-report.html, after RUN; standard "
    "output for other formats]",
)  # fmt: skip
@click.option(
    "--format",
    "form",
    type=click.Choice(REPORT_FORMATS),
    help="[default: by the ending of --output]",
)
@click.option(
    "--images", type=click.IntRange(min=1), default=MAX_EVALUATION_IMAGES, show_default=True,
    help="images that the network is judged on at most",
)  # fmt: skip
@click.option("--test", "test_data", help="data to judge it on  [default: images held out]")
def report_command(
    run_url: str, output: str | None, form: str | None, images: int, test_data: str | None
) -> None:
    """Write all that is known of a run, finished or not, into one page without references.

    The network is judged on images that the run held out, or was trained on where it held none
    out; on test images only where --test names them. Markdown has no pictures; JSON has all
    numbers.

    \b
    Example:
      rescnet report runs/digits-20260101-120000 -o report.html
      rescnet report runs/digits-20260101-120000 --format json
    """
    form = form or _form_of(output)
    if output is None:
        path = urlsplit(run_url).path if "://" in run_url else run_url  # not a URL's secrets
        name = os.path.basename(path.rstrip("/")) or "run"
        output = f"{name}-report.html" if form == "html" else "-"
    check_folder(output)  # before the work, not behind it
    with working("judging the network"):
        report = make_report(run_url, images=images, test=test_data, pictures=form == "html")
        text = render_report(report, form)
    with finished_file(output, binary=True) as file:
        file.write(text.encode())
    if output != "-":
        click.echo(f"wrote {output}", err=True)


def _form_of(output: str | None) -> str:
    """The format that a file's ending stands for."""
    if output in (None, "-"):
        return "html"
    ending = os.path.splitext(str(output))[1].lower()
    if ending not in ENDINGS:
        raise RescnetError(
            f"--output {output} has the ending {ending!r}, which no format is known by: use "
            f"{', '.join(ENDINGS)}, or give --format"
        )
    return ENDINGS[ending]
