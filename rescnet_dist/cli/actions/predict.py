"""What `rescnet predict` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from rescnet_dist.cli.batches import compute_batches, compute_slices, count_threads
from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.resolve import resolve_averaging
from rescnet_dist.cli.status import show_progress
from rescnet_dist.cli.tables import (
    STANDARD_OUTPUT,
    Columns,
    Predictions,
    check_output,
    open_table,
    select_format,
)
from rescnet_dist.data import (
    Images,
    PhotoSource,
    Source,
    evaluation_split,
    has_photos,
    is_photo,
    open_dataset,
    open_source,
    open_split,
    read_photos,
)
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import DataError, mask_secrets, pluralize
from rescnet_dist.network import BaseNetwork, load_network

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]

MAX_LISTED_PROBLEMS = 5  # of those that are left out


def predict(
    run_url: str,
    data: tuple[str, ...],
    output: str,
    split: str | None,
    proba: bool,
    resize: tuple[int, int] | None,
    channels: str | None,
    on_error: Literal["error", "skip"],
    flips: bool,
    copies: int | None,
    array_backend: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Predict the labels of photos or of a dataset."""
    form = select_format(output, as_json=as_json)
    check_output(output, form)
    augment = resolve_averaging(flips, copies)
    network = load_network(run_url).on(array_backend)
    with cluster(pop_cluster_options(flags), embedded=False) as client:
        threads = count_threads(client)
        options = (split, resize, channels)
        images = open_images(data, network, threads, *options, lazy=client is not None)
        batches = predict_batches(network, images, network.resolve_copies(augment), client, threads)
        columns = Columns(network.classes, images.files is not None, proba, len(images.array))
        skipped: list[str] = []
        with (
            open_table(output, form, columns) as write,
            show_progress("predicting", "images") as progress,
        ):
            progress(0, columns.rows)
            for start, (rows, *problems) in batches:
                is_good = np.ones(len(rows), bool)
                if problems:
                    skipped += check_problems(problems[0], on_error)
                    is_good = np.array([problem is None for problem in problems[0]], bool)
                numbers = start + np.flatnonzero(is_good)
                files = (
                    None
                    if images.files is None
                    else [str(images.files[n]) for n in numbers.tolist()]
                )
                write(Predictions(numbers, files, rows[is_good]))
                progress(start + len(rows), columns.rows)
            if len(skipped) == columns.rows:
                raise DataError(f"None of the images can be used. {skipped[0]}")
    report_outcome(output, columns.rows - len(skipped), skipped, as_json=as_json)


@dataclass(frozen=True, slots=True)
class ImageTable:
    """Images (n, H, W, d), problems (n,) of photos that are decoded, and file names (n,)."""

    array: Array | da.Array
    problems: Array | da.Array | None
    files: Sequence[str] | Array | None


def open_images(
    data: Sequence[str],
    network: BaseNetwork,
    threads: int,
    split: str | None,
    resize: tuple[int, int] | None,
    channels: str | None,
    *,
    lazy: bool = False,
) -> ImageTable:
    """Open photos or a dataset as images of a network, in batches that keep all threads busy.

    Unless they must be `lazy`, photos that one task can hold and arrays in memory are not: they
    need no dask.array, whose import takes a second.
    """

    source = find_photos(data, has_options=bool(resize or channels or network.input))
    if source is not None:
        name = select_split(source, split)
        decoder = network.photo_decoder(resize, channels)
        count = source.splits[name]
        photos = source, name, decoder, network.chunk_images(count, threads)
        if not (lazy or count > network.batch_images):
            return ImageTable(*read_photos(*photos), source.files(name))
        from rescnet_dist.data.lazy import open_photos  # slow to import

        return ImageTable(*open_photos(*photos), source.files(name))
    dataset: Any = data[0]
    if resize or channels:
        dataset = open_dataset(dataset, resize=resize, channels=channels)
    part = evaluation_split(open_split(dataset, split) if split else dataset)
    network.check_images(part.images)
    network.look_at(part.images)
    count = part.images.shape[0]
    if not (lazy or part.images.is_lazy):
        return ImageTable(part.images.array, None, part.files)
    import dask.array as da  # slow to import

    array = da.asarray(part.images.array).rechunk({0: network.chunk_images(count, threads)})
    return ImageTable(array, None, part.files)


def predict_batches(
    network: BaseNetwork,
    images: ImageTable,
    augment: AugmentSpec | None,
    client: Client | None,
    threads: int,
) -> Iterator[tuple[int, Sequence[Array]]]:
    """Yield the first row, the probabilities (m, C) and problems (m,) of batches of m images."""
    problems = [] if images.problems is None else [images.problems]
    if is_dask_array(images.array):
        scores = network.scores(images.array, augment)
        return compute_batches([network.probabilities(scores), *problems], client, threads)
    checked, copies = network.prepare(images.array, augment)

    def compute(rows: slice) -> list[Any]:
        """Return the probabilities and problems of some rows."""
        scores = network.map_scores(Images(checked.array[rows]), copies, first=rows.start)
        return [network.probabilities(scores), *(problem[rows] for problem in problems)]

    return compute_slices(compute, len(checked.array), network.batch_images * threads)


def find_photos(data: Sequence[str], *, has_options: bool) -> Source | None:
    """Return the source of photos that are given by name, or of a folder or file of photos.

    It is None for a dataset of arrays, and without options to decode photos with.
    """
    if all(is_photo(url) for url in data):
        return PhotoSource(data)
    if len(data) > 1:
        other = next(url for url in data if not is_photo(url))
        raise DataError(
            f"{mask_secrets(other)} is not an image file (PNG, JPEG or WebP). Give any number of "
            "image files, or one folder or dataset."
        )
    try:
        source = open_source(data[0]) if has_options else None
    except DataError:  # such as for a netCDF file, which is a dataset and no source
        return None
    return source if source is not None and has_photos(source) else None


def select_split(source: Source, split: str | None) -> str:
    """Return the given split of a source, else its test split, or the only one."""
    names = list(source.splits)
    found = split or ("test" if "test" in names or len(names) > 1 else names[0])
    if found not in names:
        raise DataError(
            f"{mask_secrets(source.url)} has no images in {found}. It has images in "
            f"{', '.join(names)}; name one of these splits by --split."
        )
    return found


def check_problems(problems: Any, on_error: str) -> list[str]:
    """Return why images cannot be used; raise DataError for the first if none may be skipped."""
    found = [problem for problem in problems if problem is not None]
    if found and on_error == "error":
        raise DataError(f"{found[0]} Add --on-error skip to leave such images out.")
    return found


def report_outcome(output: str, count: int, skipped: list[str], *, as_json: bool) -> None:
    """Say what was written, on standard error, or as JSON on standard output."""
    if as_json and output != STANDARD_OUTPUT:
        record = {"output": mask_secrets(output), "images": count, "skipped": skipped}
        click.echo(json.dumps(record))
        return
    if output != STANDARD_OUTPUT:
        click.echo(f"wrote {pluralize(count, 'label')} to {mask_secrets(output)}", err=True)
    if skipped:
        click.echo(f"skipped {pluralize(len(skipped), 'image')}", err=True)
    for problem in skipped[:MAX_LISTED_PROBLEMS]:
        click.echo(f"  {problem}", err=True)
