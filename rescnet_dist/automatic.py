"""Settings of a network that are chosen for the size and the number of the images.

The rule was chosen on held-out training images of MNIST, CIFAR-10 and CIFAR-100, never on test
images; the figures are in the book, in "Choosing settings". It gives ordinary options, which a run
stores like any others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rescnet_dist.errors import pluralize
from rescnet_dist.formatting import format_changes

MANY_IMAGES = 10_000  # from which on more filters and layers are worth their time
FEW_IMAGES = 1_000  # up to which a larger ridge is needed
LARGE_GRAY_SIDE = 14  # pixels, from which on first filters of a gray image may be large
FIRST_GRAY_FILTER_SIZE = 7  # as a patch of 3×3 pixels of one channel shows little


def automatic_options(image_shape: tuple[int, int, int], images: int) -> dict[str, Any]:
    """Return the options of a network for so many training images of shape (H, W, d).

    Blocks are half as wide as the images and overlap by three quarters. Fewer images need a larger
    ridge, more of them repay more filters and layers. A few thousand gray images get the network of
    the preset "digits", in proportion to their size.

    The head is "regress", which does not collapse on small data. Another head takes over its
    options, except for those that its class declares (`Head.automatic_options`).
    """
    height, width, channels = image_shape
    side = min(height, width)
    is_large_gray = channels == 1 and side >= LARGE_GRAY_SIDE
    few, many = images <= FEW_IMAGES, images >= MANY_IMAGES
    block = max(2, side // 2)
    options = {
        "filters": 24 if many else 16,
        "first_filter_size": FIRST_GRAY_FILTER_SIZE if is_large_gray else min(3, side),
        "filter_size": min(3, side),
        "block": block,
        "stride": max(1, block // 4),
        "power": True,
        "rectify": True,
        "head": "regress",
        "ridge": 3.0 if few else 0.3 if is_large_gray else 1.0,
        "learning_rate": 0.3,
        "max_layers": 12 if many else 6,
        "stop_at_zero_error": False,
    }
    if is_large_gray and not (few or many):
        options |= {"block": side // 4, "stride": side // 7, "power": False, "rectify": False}
        options |= {"learning_rate": 0.7, "max_layers": 4}
    return options


def describe_choice(
    rows: Iterable[tuple[str, Any, bool]],
    image_shape: tuple[int, int, int],
    images: int,
    classes: int,
) -> str:
    """Return one line on the settings that were chosen, and for what.

    `rows` are those of the spec; options that are the default are left out.
    """
    height, width, channels = image_shape
    return (
        f"settings chosen for {images:,} images of {height}×{width}×{channels} and "
        f"{pluralize(classes, 'class')}: {format_changes(rows)}"
    )
