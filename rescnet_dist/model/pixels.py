"""The pixels that layers see: those of all views of the images, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from rescnet_dist.kernels import Backend
from rescnet_dist.kernels.arrays import Array, get_array_module, on_gpu
from rescnet_dist.model.architecture import GPU_SLAB_BYTES, SLAB_BYTES, Architecture
from rescnet_dist.model.layer import ImageScale
from rescnet_dist.model.view import ViewArrays

NO_ARRAYS: Mapping[str, ViewArrays] = MappingProxyType({})


def put_views(views: Mapping[str, ViewArrays], backend: Backend) -> dict[str, ViewArrays]:
    """Return what views have learned in the memory that images are viewed in.

    Parameters
    ----------
    views : mapping of str to mapping of str to ndarray
        What `View.fit` returned, by the name of the view.
    backend : Backend
        The backend of the images.

    Returns
    -------
    dict of str to mapping of str to ndarray
        The same; numbers stay in the memory of the host.
    """
    return {
        view: {name: backend.put(a) if a.ndim else a for name, a in arrays.items()}
        for view, arrays in views.items()
    }


def layer_pixels(images: Array, scale: ImageScale, architecture: Architecture) -> Array:
    """Compute the pixels that layers see of images, in addition to maps.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    scale : ImageScale
        Their normalization, and what views have learned.
    architecture : Architecture
        The network. The channels of all its views follow each other.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels.
    """
    return _make_views(images, scale, scale.views, architecture)


def raw_pixels(
    images: Array, architecture: Architecture, views: Mapping[str, ViewArrays] = NO_ARRAYS
) -> Array:
    """Compute the pixels of `layer_pixels` before the normalization of images is known.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    architecture : Architecture
        The network.
    views : mapping of str to mapping of str to ndarray, default {}
        What `View.fit` returned, by the name of the view.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels; those of views with an image scale are not normalized.
    """
    return _make_views(
        images, lambda part: part.astype(np.float32, copy=False), views, architecture
    )


def _make_views(
    images: Array,
    rescale: Callable[[Array], Array],
    known: Mapping[str, ViewArrays],
    architecture: Architecture,
) -> Array:
    """Return the pixels (n, H, W, d') of all views; `rescale` is for those with an image scale."""
    views = architecture.views
    if len(views) == 1 and views[0].uses_image_scale:
        return rescale(images)
    n, height, width, channels = images.shape
    shape = n, height, width, architecture.pixel_channels
    pixels = get_array_module(images).empty(shape, np.float32)
    size = GPU_SLAB_BYTES if on_gpu(images) else SLAB_BYTES
    copies = max(view.copies for view in views)
    step = max(1, size // (copies * 4 * height * width * channels))
    for start in range(0, n, step):
        rows, first = slice(start, start + step), 0
        for view in views:
            own = slice(first, first + view.channels(channels))
            if view.uses_image_scale:
                pixels[rows, ..., own] = rescale(images[rows])
            else:
                pixels[rows, ..., own] = view(images[rows], known.get(view.name, {}))
            first = own.stop
    return pixels
