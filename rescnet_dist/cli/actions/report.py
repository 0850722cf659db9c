"""What `rescnet report` does."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import click

from rescnet_dist.cli.files import check_folder, open_atomic
from rescnet_dist.cli.status import show_status
from rescnet_dist.dashboard.render import render_report
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.errors import RescnetError

FORMAT_BY_EXTENSION = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}


def report(
    run_url: str, output: str | None, form: str | None, images: int, test_data: str | None
) -> None:
    """Write a report of a run as one self-contained page."""
    form = form or _select_format(output)
    if output is None:
        path = (
            urlsplit(run_url).path if "://" in run_url else run_url
        )  # without the query, which may have secrets
        name = os.path.basename(path.rstrip("/")) or "run"
        output = f"{name}-report.html" if form == "html" else "-"
    check_folder(output)  # before the work, not after it
    with show_status("evaluating the network"):
        report = make_report(run_url, images=images, test=test_data, pictures=form == "html")
        text = render_report(report, form)
    with open_atomic(output, binary=True) as file:
        file.write(text.encode())
    if output != "-":
        click.echo(f"wrote {output}", err=True)


def _select_format(output: str | None) -> str:
    """Return the format for the extension of a file; HTML for standard output."""
    if output in (None, "-"):
        return "html"
    extension = os.path.splitext(str(output))[1].lower()
    if extension not in FORMAT_BY_EXTENSION:
        raise RescnetError(
            f"--output {output} has the unknown extension {extension!r}. Use "
            f"{', '.join(FORMAT_BY_EXTENSION)}, or add --format."
        )
    return FORMAT_BY_EXTENSION[extension]
