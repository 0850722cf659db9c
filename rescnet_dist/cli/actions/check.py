"""What `rescnet check` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.status import show_status
from rescnet_dist.data import verify_dataset
from rescnet_dist.errors import CorruptDataError, mask_secrets
from rescnet_dist.runs import check_no_folder_of_runs
from rescnet_dist.store import (
    DATASET_FORMAT,
    FUSED_FORMAT,
    NETWORK_FORMAT,
    Location,
    RunStore,
    last_saved,
    limit_retries,
    read_format_name,
)
from rescnet_dist.train import verify_run

RECOMPUTED = "maps", "scores"  # arrays of a layer
NETWORK_FORMATS = (NETWORK_FORMAT, FUSED_FORMAT)


def check(url: str, as_json: bool, **flags: Any) -> None:
    """Verify a run: find chunks that are missing, altered or stale."""
    with cluster(pop_cluster_options(flags), embedded=False), show_status("reading every chunk"):
        try:
            problems, stored = find_problems(url)
        except CorruptDataError as error:  # nothing of it can be verified
            problems, stored = [str(error)], ""
    if as_json:
        click.echo(json.dumps({"url": mask_secrets(url), "problems": problems}))
    else:
        click.echo("\n".join(problems) or f"{mask_secrets(url)}: {stored}")
        if (layer := find_recomputed_layer(url, problems)) is not None:
            click.echo(
                f"`rescnet resume` recomputes the maps and scores of layer {layer} if the run has "
                "more layers to grow (--max-layers)."
            )
    sys.exit(1 if problems else 0)


def find_problems(url: str) -> tuple[list[str], str]:
    """Return the problems of what is stored at a URL, and what is verified if there are none."""
    kind, stored = find_format(url), "every chunk is as it was committed"
    if kind is None:
        check_no_folder_of_runs(url)
    if kind in NETWORK_FORMATS:
        return check_network(url)
    return verify_dataset(url) if kind == DATASET_FORMAT else verify_run(url), stored


def find_recomputed_layer(url: str, problems: Sequence[str]) -> int | None:
    """Return the last layer whose maps are stored if all problems are of its maps and scores."""
    if not problems or not all(problem.startswith(RECOMPUTED) for problem in problems):
        return None
    layer = last_saved(RunStore.open(url).commits())
    paths = tuple(f"{name}/{layer:04d}" for name in RECOMPUTED)
    return layer if all(problem.startswith(paths) for problem in problems) else None


def check_network(url: str) -> tuple[list[str], str]:
    """Return the problems of a saved or fused network, and what is verified if there are none."""
    from rescnet_dist.network import has_metadata_checksum, verify_network  # a run needs no imports

    if problems := verify_network(url):
        return problems, ""
    if has_metadata_checksum(url):
        return [], "every layer, the classes and the settings are as they were saved"
    return [], (
        "every layer is as it was saved; the classes and settings have no checksum, as an earlier "
        "release saved them. Load the network and save it again to add one."
    )


@limit_retries(0)
def find_format(url: str) -> str | None:
    """Return the name of the format at a URL that a user has named; None if it says none."""
    return read_format_name(Location.of(url))
