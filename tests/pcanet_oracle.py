"""Slow, plain NumPy reference of PCANet, which shares no code with the package.

It follows the publication (Chan et al., 2015) with images as (N, H, W, d). As in its code, the mean
of a patch is that of each channel, and borders are padded with zeros. Filters are eigenvectors of
the covariance of patches about their mean, where PCANet has their second moments.
"""

import numpy as np

Array = np.ndarray


def centered_patches(image: Array, k: int) -> Array:
    """Return all k×k patches (rows, columns, k*k, c) of an image (H, W, c), without their means."""
    height, width, channels = image.shape
    patches = np.zeros((height - k + 1, width - k + 1, k * k, channels))
    for y in range(height - k + 1):
        for x in range(width - k + 1):
            patch = image[y : y + k, x : x + k].reshape(k * k, channels)
            patches[y, x] = patch - patch.mean(axis=0)
    return patches


def pca_filters(images: list[Array], k: int, count: int) -> Array:
    """Return filters (k*k*c, count): eigenvectors of the patches of images (H, W, c)."""
    table = np.concatenate(
        [centered_patches(image, k).reshape(-1, k * k * image.shape[2]) for image in images]
    )
    table = table - table.mean(axis=0)
    vectors = np.linalg.eigh(table.T @ table)[1][:, ::-1][:, :count]
    signs = [np.sign(v[np.argmax(np.abs(v))]) for v in vectors.T]
    return vectors * signs


def convolve(image: Array, filters: Array, k: int) -> Array:
    """Return the maps (H, W, count) of an image (H, W, c) padded with zeros."""
    before = (k - 1) // 2
    after = k - 1 - before
    padded = np.pad(image, ((before, after), (before, after), (0, 0)))
    patches = centered_patches(padded, k)
    return patches.reshape(*image.shape[:2], -1) @ filters


def stages(images: Array, training: Array, k: tuple[int, int], counts: list[int]) -> list[Array]:
    """Return the maps (N, H, W, f) of all stages for images (N, H, W, d).

    Filters are learned from images where `training` (N,). Those of the first stage see all
    channels, those of later ones are applied to each map; the maps of one map are consecutive.
    """
    found = []
    inputs = images.astype(np.float64)
    for stage, count in enumerate(counts):
        size = k[0] if stage == 0 else k[1]
        if stage == 0:
            pool = [image for image, used in zip(inputs, training, strict=True) if used]
            filters = pca_filters(pool, size, count)
            maps = [convolve(image, filters, size) for image in inputs]
        else:
            pool = [
                image[:, :, c : c + 1]
                for image, used in zip(inputs, training, strict=True)
                for c in range(image.shape[2])
                if used
            ]
            filters = pca_filters(pool, size, count)
            maps = [
                np.concatenate(
                    [
                        convolve(image[:, :, c : c + 1], filters, size)
                        for c in range(image.shape[2])
                    ],
                    axis=2,
                )
                for image in inputs
            ]
        inputs = np.array(maps)
        found.append(inputs)
    return found


def hash_histograms(maps: Array, bits: int, block: int, stride: int) -> Array:
    """Return histograms (N, blocks, f / bits, 2^bits) of the codes of maps (N, H, W, f).

    The first of `bits` maps is the highest digit of a code.
    """
    n, height, width, f = maps.shape
    groups = f // bits
    codes = np.zeros((n, height, width, groups), dtype=int)
    for group in range(groups):
        for bit in range(bits):
            positive = maps[:, :, :, group * bits + bit] > 0
            codes[:, :, :, group] += 2 ** (bits - 1 - bit) * positive
    found = []
    for y in range(0, height - block + 1, stride):
        for x in range(0, width - block + 1, stride):
            inside = codes[:, y : y + block, x : x + block]
            histograms = np.zeros((n, groups, 2**bits))
            for image in range(n):
                for group in range(groups):
                    values = inside[image, :, :, group].ravel()
                    histograms[image, group] = np.bincount(values, minlength=2**bits)
            found.append(histograms)
    return np.array(found).transpose(1, 0, 2, 3)
