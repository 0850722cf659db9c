"""The benchmarked computations with other libraries, in their best documented way.

Inputs and outputs are those of PyTorch: tensors with channels first, in single precision. All cores
are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rescnet_dist.cluster import available_cores
from rescnet_dist.kernels.pooling import pyramid

Array = np.ndarray[Any, np.dtype[Any]]

UNFOLDED_BYTES = 2**27  # size of the unfolded patches held at a time: more would be slower


def unfold(images: Array, size: int) -> Array:
    """Return a view (n, H', W', size, size, c) of all valid patches of images (n, H, W, c)."""
    windows = sliding_window_view(images, (size, size), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3)


def torch() -> Any:
    """Import PyTorch, set to use all cores; return None if it is not installed."""
    try:
        import torch as library
    except ImportError:
        return None
    library.set_num_threads(available_cores())
    return library


def tensor(images: Array) -> Any:
    """Convert images (n, H, W, c) to a tensor (n, c, H, W)."""
    library = torch()
    return library.as_tensor(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def patch_scatter(images: Any, size: int) -> Any:
    """Return the scatter (k²c, k²c) of all patches of images (n, c, H, W): unfold, multiply."""
    library = torch()
    n, channels, height, width = images.shape
    directions = channels * size * size
    step = max(1, UNFOLDED_BYTES // (4 * directions * height * width))
    total, sums, count = library.zeros(directions, directions), library.zeros(directions), 0
    for start in range(0, n, step):
        patches = library.nn.functional.unfold(images[start : start + step], size)
        flat = patches.transpose(1, 2).reshape(-1, directions)
        total += flat.T @ flat
        sums += flat.sum(0)
        count += len(flat)
    return total - library.outer(sums, sums) / count


def second_order_features(maps: Any, block: int, stride: int, levels: tuple[int, ...]) -> Any:
    """Return features (n, D) of maps (n, f, H, W): unfold blocks, standardize, multiply, pool."""
    library = torch()
    n, filters, height, width = maps.shape
    live, targets = pyramid(height, width, block, stride, levels, "center")
    rows, columns, _ = targets.shape
    members = library.as_tensor(targets.reshape(rows * columns, -1))
    cell_blocks = [(members == cell).any(1).nonzero()[:, 0] for cell in range(live)]
    upper = library.triu_indices(filters, filters, 1)
    step = max(1, UNFOLDED_BYTES // (4 * rows * columns * block * block * filters))
    features = []
    for start in range(0, n, step):
        batch = library.relu(maps[start : start + step])
        blocks = library.nn.functional.unfold(batch, block, stride=stride)
        blocks = blocks.view(len(batch), filters, block * block, -1).permute(0, 3, 1, 2)
        blocks = blocks.reshape(-1, filters, block * block)
        blocks = blocks - blocks.mean(2, keepdim=True)
        deviation = blocks.square().mean(2, keepdim=True).sqrt_().clamp_(min=1e-6)
        blocks = blocks / deviation
        covariance = library.bmm(blocks, blocks.transpose(1, 2)).div_(block * block)
        covariance = covariance.view(len(batch), rows * columns, filters, filters)
        pooled = library.stack([covariance[:, cells].amax(1) for cells in cell_blocks], 1)
        features.append(pooled[:, :, upper[0], upper[1]].reshape(len(batch), -1))
    return library.cat(features)


def layer_pass(
    images: Any, maps: Any, filters: Any, targets: Any, block: int, stride: int
) -> tuple[Any, Any, Any, Any]:
    """Run the pass of a layer on images (n, d, H, W) and maps (n, f, H, W) of the layer before.

    Returns new maps, Gram matrix and class sums of the features, and the patch scatter of the next
    layer's input. The update of the scores, from features that are in memory, is left out, as its
    cost is negligible.
    """
    library = torch()
    inputs = library.cat([maps, images], 1)
    new_maps = library.nn.functional.conv2d(inputs, filters, padding="same")
    gram: Any = 0
    sums: Any = 0
    for start in range(0, len(new_maps), 256):
        features = second_order_features(new_maps[start : start + 256], block, stride, (4, 2, 1))
        gram += features.T @ features
        sums += targets[start : start + 256].T @ features
    scatter = patch_scatter(library.cat([new_maps, images], 1), filters.shape[2])
    return new_maps, gram, sums, scatter
