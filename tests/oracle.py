"""Slow, plain NumPy reference ("oracle") of ResCNet training, against which the package is tested.

It follows "A layer, step by step" of notebooks/how-it-works/algorithm.md, whose step numbers the
sections below have, in float64, and shares no code with the package. Letters: N images, H rows, W
columns, d image channels, c layer input channels, k filter size, f filters, C classes, D features,
S signs (2 for classify: positive, negative; 1 for regress). An image of weight w counts as w images
in all sums over training images.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass
class OracleLayer:
    """One fitted layer and its results for all images, validation images included."""

    low: Array  # (c,)
    scale: Array  # (c,), Z = (raw - low) * scale
    filters: Array  # (k, k, c, f)
    bias: Array  # (f,)
    maps: Array  # (N, H, W, f)
    features: Array  # (N, D)
    weights: Array  # (S, C, D)
    intercept: Array  # (S, C)
    present: Array  # (S, C) bool
    share: Array  # (S,)
    rate: float
    scores: Array  # (N, C), running scores after this layer


# ---------------------------------------------------------------------------- step 1: min-max


def min_max(raw: Array, mode: str) -> tuple[Array, Array]:
    """Return low and scale, (c,) each, of training inputs (n, H, W, c); 0 for a constant."""
    channels = raw.shape[3]
    low = np.zeros(channels)
    scale = np.zeros(channels)
    for channel in range(channels):
        if mode == "global":
            values = raw
        elif mode == "channel":
            values = raw[:, :, :, channel]
        else:
            raise ValueError(f"minmax {mode!r}")
        low[channel] = values.min()
        if values.max() > values.min():
            scale[channel] = 1.0 / (values.max() - values.min())
    return low, scale


# ---------------------------------------------------------------------------- step 2: PCA filters


def patch_covariance(
    images: Array, k: int, weight: Array | None = None
) -> tuple[float, Array, Array]:
    """Return count, mean (k*k*c,) and covariance (k*k*c, k*k*c) of all patches of (n, H, W, c).

    A patch is flattened in (row, column, channel) order; the covariance is divided by the count.
    The patches of an image have its weight (n,), by default 1.
    """
    n, height, width, _ = images.shape
    patches, weights = [], []
    for image in range(n):
        for row in range(height - k + 1):
            for col in range(width - k + 1):
                patch = images[image, row : row + k, col : col + k, :]
                patches.append(patch.astype(np.float64).reshape(-1))
                weights.append(1.0 if weight is None else weight[image])
    w = np.array(weights)[:, None]
    count = w.sum()
    table = np.array(patches)
    mean = (w * table).sum(axis=0) / count
    centered = table - mean
    covariance = (w * centered).T @ centered / count
    return count, mean, covariance


def pca_filters(covariance: Array, k: int, n_pca: int) -> Array:
    """Return the n_pca leading eigenvectors of a covariance (k*k*c, k*k*c) as filters.

    Filters are (k, k, c, n_pca). The entry of each that is largest in absolute value (the first one
    on ties) is positive.
    """
    channels = covariance.shape[0] // (k * k)
    _, vectors = np.linalg.eigh(covariance)  # eigenvalues ascending, vectors in columns
    filters = np.zeros((k, k, channels, n_pca))
    for j in range(n_pca):
        vector = vectors[:, vectors.shape[1] - 1 - j]
        if vector[np.argmax(np.abs(vector))] < 0:
            vector = -vector
        filters[:, :, :, j] = vector.reshape(k, k, channels)
    return filters


# -------------------------------------------------------------------- step 3: stacked-LDA filters


def draws(
    labels: Array,
    training: Array,
    n_classes: int,
    size: tuple[int, int],
    k: int,
    n_pos: int,
    n_neg: int,
    seed: int,
    layer: int,
    count: int,
    weight: Array | None = None,
) -> list[tuple[int, Array, Array, Array]]:
    """Return draws 0 .. count-1 of a layer (1-based): class, images, patch rows, patch columns.

    labels, training and weight are (N,), size is (H, W); the three arrays are (n_pos + n_neg,),
    positives first, and the image indices point into all N images.
    """
    height, width = size
    repeats = [1] * len(labels) if weight is None else draw_repeats(weight, training)
    result = []
    for t in range(count):
        rng = np.random.default_rng([seed, layer, t])
        c = int(rng.integers(n_classes))
        members = [n for n in range(len(labels)) if training[n] and labels[n] == c]
        others = [n for n in range(len(labels)) if training[n] and labels[n] != c]
        pos = rng.integers(sum(repeats[n] for n in members), size=n_pos)
        neg = rng.integers(sum(repeats[n] for n in others), size=n_neg)
        rows = rng.integers(height - k + 1, size=n_pos + n_neg)
        cols = rng.integers(width - k + 1, size=n_pos + n_neg)
        images = [nth_image(members, repeats, rank) for rank in pos]
        images += [nth_image(others, repeats, rank) for rank in neg]
        result.append((c, np.array(images), rows, cols))
    return result


def draw_repeats(weight: Array, training: Array) -> list[int]:
    """Return how many images each of the N images is for draws: its weight, if all are whole.

    Otherwise the weight relative to the mean over training images is multiplied by 2**30.
    """
    if all(w == int(w) for w in weight[training]):
        return [int(w) for w in weight]
    mean = weight[training].sum() / training.sum()
    return [max(1, round(float(w / mean * 2**30))) for w in weight]


def nth_image(images: list[int], repeats: list[int], rank: int) -> int:
    """Return the image of this rank if each image is repeated."""
    for image in images:
        rank -= repeats[image]
        if rank < 0:
            return image
    raise ValueError(f"no image of rank {rank}")


def two_class_lda(positives: Array, negatives: Array, ridge: float) -> tuple[Array, float, float]:
    """Return unit-norm weights (p,), bias and training error of LDA on (n_pos, p), (n_neg, p)."""
    n_pos, p = positives.shape
    n_neg = negatives.shape[0]
    n = n_pos + n_neg
    m1 = positives.mean(axis=0)
    m0 = negatives.mean(axis=0)
    within = np.zeros((p, p))
    for x in positives:
        within += np.outer(x - m1, x - m1)
    for x in negatives:
        within += np.outer(x - m0, x - m0)
    within = within / n
    if np.trace(within) == 0:
        return np.zeros(p), 0.0, 1.0
    ridged = within + ridge * np.mean(np.diag(within)) * np.eye(p)
    w = np.linalg.solve(ridged, m1 - m0)
    b = -0.5 * (m1 + m0) @ w + math.log(n_pos / n_neg)
    wrong = 0
    for x in positives:
        if not x @ w + b > 0:
            wrong += 1
    for x in negatives:
        if x @ w + b > 0:
            wrong += 1
    norm = np.linalg.norm(w)
    if norm > 0:
        w = w / norm
        b = b / norm
    return w, float(b), wrong / n


def stacked_lda(
    inputs: Array,
    labels: Array,
    training: Array,
    n_classes: int,
    k: int,
    n_lda: int,
    spec: Any,
    seed: int,
    layer: int,
    first_draw: int = 0,
    weight: Array | None = None,
) -> tuple[Array, Array]:
    """Return filters (k, k, c, n_lda) and bias (n_lda,) from normalized inputs (N, H, W, c).

    The draws start with number first_draw.
    """
    _, height, width, channels = inputs.shape
    n_pos = spec.lda_positives
    n_neg = spec.lda_negatives
    fitted = []
    all_draws = draws(
        labels,
        training,
        n_classes,
        (height, width),
        k,
        n_pos,
        n_neg,
        seed,
        layer,
        first_draw + spec.lda_draws * n_lda,
        weight,
    )
    for _, images, rows, cols in list(all_draws)[first_draw:]:
        patches = []
        for image, row, col in zip(images, rows, cols, strict=True):
            patches.append(inputs[image, row : row + k, col : col + k, :].reshape(-1))
        table = np.array(patches)
        fitted.append(two_class_lda(table[:n_pos], table[n_pos:], spec.lda_ridge))

    good = [t for t in range(len(fitted)) if fitted[t][2] <= spec.lda_tolerance]
    rest = [t for t in range(len(fitted)) if t not in good]
    rest.sort(key=lambda t: (fitted[t][2], t))
    selected = (good + rest)[:n_lda]

    filters = np.zeros((k, k, channels, n_lda))
    bias = np.zeros(n_lda)
    for j, t in enumerate(selected):
        filters[:, :, :, j] = fitted[t][0].reshape(k, k, channels)
        bias[j] = fitted[t][1]
    return filters, bias


# ---------------------------------------------------------------------------- step 4: filter bank


def bank_sizes(f: int, lda_fraction: float, directions: int) -> tuple[int, int]:
    """Return the numbers of PCA and of stacked-LDA filters; k*k*c is `directions`."""
    n_lda = math.floor(f * lda_fraction + 0.5)
    n_pca = min(f - n_lda, directions)
    return n_pca, f - n_pca


def filter_bank(
    inputs: Array,
    labels: Array,
    training: Array,
    n_classes: int,
    k: int,
    spec: Any,
    seed: int,
    layer: int,
    weight: Array,
) -> tuple[Array, Array]:
    """Return filters (k, k, c, f), PCA first, and bias (f,) from normalized inputs (N, H, W, c)."""
    channels = inputs.shape[3]
    f = filters_at(spec, layer)
    filters, bias = np.zeros((k, k, channels, f)), np.zeros(f)
    first_draw = 0
    for own, numbers in towers(spec, layer, channels):
        own_inputs = inputs[:, :, :, own]
        n_pca, n_lda = bank_sizes(len(numbers), spec.lda_fraction, k * k * len(own))
        observed = observed_images(labels, training, spec.filter_images)
        _, _, covariance = patch_covariance(own_inputs[observed], k, weight[observed])
        pca = pca_filters(covariance, k, n_pca)
        lda, lda_bias = stacked_lda(
            own_inputs, labels, training, n_classes, k, n_lda, spec, seed, layer, first_draw, weight
        )
        first_draw += spec.lda_draws * n_lda
        for location, number in enumerate(numbers):
            if location < n_pca:
                filters[:, :, own, number] = pca[:, :, :, location]
            else:
                filters[:, :, own, number] = lda[:, :, :, location - n_pca]
                bias[number] = lda_bias[location - n_pca]
    return filters, bias


def observed_images(labels: Array, training: Array, limit: int | None) -> Array:
    """Return which images (N,) moments of patches are gathered from: all, or `limit` spread evenly.

    Those of a class are numbered; number r is taken if the fraction of r/φ is small enough.
    """
    total = int(training.sum())
    if limit is None or limit >= total:
        return training
    found, seen = np.zeros(len(labels), dtype=bool), dict.fromkeys(labels.tolist(), 0)
    for i in np.flatnonzero(training):
        r = seen[int(labels[i])]
        seen[int(labels[i])] += 1
        found[i] = (r * (np.sqrt(5) - 1) / 2) % 1 < limit / total
    return found


def towers(spec: Any, layer: int, channels: int) -> list[tuple[list[int], list[int]]]:
    """Return the input channels and filters of each tower of a layer.

    There is one tower, or two with local_contrast; the first then has the image, and the first half
    of the filters and of the maps.
    """
    f = filters_at(spec, layer)
    maps = filters_at(spec, layer - 1) if layer > 1 else 0
    if not spec.local_contrast:
        return [(list(range(channels)), list(range(f)))]
    d = (channels - maps) // 2
    one, other = list(range(f // 2)), list(range(f // 2, f))
    image, contrast = list(range(maps, maps + d)), list(range(maps + d, channels))
    own_maps, other_maps = list(range(maps // 2)), list(range(maps // 2, maps))
    return [(own_maps + image, one), (other_maps + contrast, other)]


def filters_at(spec: Any, layer: int) -> int:
    """Return the number of filters of a layer (1-based); the last number is for all later ones."""
    numbers = spec.filters if isinstance(spec.filters, tuple) else (spec.filters,)
    return numbers[layer - 1] if layer <= len(numbers) else numbers[-1]


def local_contrast(images: Array) -> Array:
    """Return pixels minus surroundings, over their deviation, of images (N, H, W, d)."""
    n, height, width, channels = images.shape
    rows = np.arange(height)[:, None]
    columns = np.arange(width)[None, :]
    result = np.zeros(images.shape)

    def surroundings(values: Array, y: int, x: int) -> float:
        weights = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * 2.0**2))
        return float((weights * values).sum() / weights.sum())

    for i in range(n):
        for c in range(channels):
            values = images[i, :, :, c].astype(np.float64)
            difference = np.zeros((height, width))
            for y in range(height):
                for x in range(width):
                    difference[y, x] = values[y, x] - surroundings(values, y, x)
            overall = math.sqrt((difference**2).mean())
            if values.max() == values.min():
                continue
            for y in range(height):
                for x in range(width):
                    local = math.sqrt(surroundings(difference**2, y, x))
                    result[i, y, x, c] = difference[y, x] / (local + 0.25 * overall)
    return result


# ---------------------------------------------------------------------------- step 5: convolution


def convolve(inputs: Array, filters: Array, bias: Array) -> Array:
    """Return maps (N, H, W, f): zero-padded correlation of (N, H, W, c) with (k, k, c, f)."""
    n, height, width, _ = inputs.shape
    k = filters.shape[0]
    f = filters.shape[3]
    before = (k - 1) // 2
    after = k - 1 - before
    padded = np.pad(inputs, ((0, 0), (before, after), (before, after), (0, 0)))
    matrix = filters.reshape(-1, f)
    maps = np.zeros((n, height, width, f))
    for image in range(n):
        for y in range(height):
            for x in range(width):
                patch = padded[image, y : y + k, x : x + k, :].reshape(-1)
                maps[image, y, x, :] = patch @ matrix + bias
    return maps


# ------------------------------------------------------- steps 6 and 7: second order and pyramid


def block_starts(size: int, block: int, stride: int) -> list[int]:
    """Return the starts 0, s, 2s, ... of the blocks that fit an axis of the given size."""
    starts = []
    start = 0
    while start + block <= size:
        starts.append(start)
        start += stride
    return starts


def block_triangle(values: Array, zscore: str, power: bool) -> Array:
    """Return the upper triangle of the covariance of one z-scored block (r, r, f) of ReLU maps.

    zscore="channel": (f*(f-1)/2,), no diagonal; zscore="block": (f*(f+1)/2,), with diagonal.
    """
    f = values.shape[2]
    pixels = values.reshape(-1, f)
    n_pixels = pixels.shape[0]
    z = np.zeros((n_pixels, f))
    if zscore == "channel":
        for channel in range(f):
            x = pixels[:, channel]
            centered = x - x.mean()
            variance = np.mean(centered**2)
            if variance > 1e-8 * np.mean(x**2):
                z[:, channel] = centered / math.sqrt(variance)
        covariance = z.T @ z / n_pixels
        offset = 1
    elif zscore == "block":
        centered = pixels - pixels.mean()
        variance = np.mean(centered**2)
        if variance > 1e-8 * np.mean(pixels**2):
            z = centered / math.sqrt(variance)
        z_centered = z - z.mean(axis=0)
        covariance = z_centered.T @ z_centered / n_pixels
        offset = 0
    else:
        raise ValueError(f"zscore {zscore!r}")
    triangle = []
    for i in range(f):
        for j in range(i + offset, f):
            entry = covariance[i, j]
            if power:
                entry = np.sign(entry) * math.sqrt(abs(entry))
            triangle.append(entry)
    return np.array(triangle, dtype=np.float64)


def block_cells(starts: list[int], size: int, block: int, g: int, cells: str) -> list[int]:
    """Return the cell (1 .. g) of every block of one axis at pyramid level g."""
    result = []
    for j, start in enumerate(starts):
        if cells == "center":
            center = start + math.ceil(block / 2)
            result.append(math.ceil(center / (size / g)))
        elif cells == "even":
            result.append(j * g // len(starts) + 1)
        else:
            raise ValueError(f"cells {cells!r}")
    return result


def second_order_features(maps: Array, spec: Any) -> Array:
    """Return features (N, D) of maps (N, H, W, f): ReLU, block covariances, spatial pyramid.

    With pairs="tower", the features of the towers are concatenated.
    """
    if spec.pairs == "tower":
        half, whole = maps.shape[3] // 2, replace(spec, pairs="all")
        towers = maps[..., :half], maps[..., half:]
        return np.concatenate([second_order_features(part, whole) for part in towers], axis=1)
    n, height, width, _ = maps.shape
    r = spec.block
    row_starts = block_starts(height, r, spec.stride)
    col_starts = block_starts(width, r, spec.stride)
    features = []
    for image in range(n):
        relu = np.maximum(maps[image], 0.0)
        triangles = {}
        for i, row in enumerate(row_starts):
            for j, col in enumerate(col_starts):
                values = relu[row : row + r, col : col + r, :]
                triangles[i, j] = block_triangle(values, spec.zscore, spec.power)
        parts = []
        for g in spec.levels:
            row_cells = block_cells(row_starts, height, r, g, spec.cells)
            col_cells = block_cells(col_starts, width, r, g, spec.cells)
            for cell_row in range(1, g + 1):
                for cell_col in range(1, g + 1):
                    inside = []
                    for i in range(len(row_starts)):
                        for j in range(len(col_starts)):
                            if row_cells[i] == cell_row and col_cells[j] == cell_col:
                                inside.append(triangles[i, j])
                    if len(inside) == 0:
                        continue
                    if spec.pool == "max":
                        parts.append(np.max(inside, axis=0))
                    elif spec.pool == "mean":
                        parts.append(np.mean(inside, axis=0))
                    else:
                        raise ValueError(f"pool {spec.pool!r}")
        features.append(np.concatenate(parts))
    return np.array(features)


# ---------------------------------------------------------------------- step 8: labels of a layer


def one_hot(labels: Array, n_classes: int) -> Array:
    """Return Y (N, C): 1 at the label, 0 elsewhere."""
    result = np.zeros((len(labels), n_classes))
    for n, label in enumerate(labels):
        result[n, label] = 1.0
    return result


def residual_labels(scores: Array, labels: Array, target: float) -> tuple[Array, Array]:
    """Return T and s, (N,) each, of a layer >= 2 from running scores (N, C) and labels (N,)."""
    residual = target * one_hot(labels, scores.shape[1]) - scores
    classes = np.zeros(len(labels), dtype=np.int64)
    signs = np.zeros(len(labels), dtype=np.int64)
    for n in range(len(labels)):
        classes[n] = np.argmax(np.abs(residual[n]))
        signs[n] = 1 if residual[n, classes[n]] >= 0 else -1
    return classes, signs


# --------------------------------------------------------- step 9: classifiers (or a regression)


def standardize(features: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return standardized training features (n, D), mean (D,) and 1/std (D,), 0 if std is 0.

    weight (n,) are the weights of the images.
    """
    n_features = features.shape[1]
    mean = weight @ features / weight.sum()
    inverse = np.zeros(n_features)
    for j in range(n_features):
        column = features[:, j]
        if column.max() > column.min():  # else std is 0, apart from rounding
            variance = (weight * (column - mean[j]) ** 2).sum() / weight.sum()
            inverse[j] = 1.0 / math.sqrt(variance)
    return (features - mean) * inverse, mean, inverse


def ridged_scatter(standardized: Array, weight: Array, inverse: Array, ridge: float) -> Array:
    """Return S + ridge * mean(diag S) * I (D, D); the diagonal is 1 for constant features."""
    n_features = standardized.shape[1]
    centered = standardized - weight @ standardized / weight.sum()
    scatter = (weight[:, None] * centered).T @ centered / weight.sum()
    result = scatter + ridge * np.mean(np.diag(scatter)) * np.eye(n_features)
    for j in range(n_features):
        if inverse[j] == 0:
            result[j, j] = 1.0
    return result


def one_vs_rest(
    features: Array,
    classes: Array,
    signs: Array,
    n_classes: int,
    ridge: float,
    weight: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return weights (2, C, D), intercept (2, C) and present (2, C) of positive and negative LDA.

    features (n, D), classes T (n,), signs s (n,) and weight (n,) are those of the training images
    only; a score is features @ weights[sign, class] + intercept[sign, class] on raw features.
    """
    weight = np.ones(len(features)) if weight is None else weight
    n, n_features = weight.sum(), features.shape[1]
    x, mean, inverse = standardize(features, weight)
    ridged = ridged_scatter(x, weight, inverse, ridge)
    weights = np.zeros((2, n_classes, n_features))
    intercept = np.zeros((2, n_classes))
    present = np.zeros((2, n_classes), dtype=bool)
    for s, sign in enumerate([1, -1]):
        for c in range(n_classes):
            member = (signs == sign) & (classes == c)
            if not member.any() or member.all():
                continue
            n1 = weight[member].sum()
            n0 = weight[~member].sum()
            m1 = weight[member] @ x[member] / n1
            m0 = weight[~member] @ x[~member] / n0
            delta = m1 - m0
            pi = n1 / n
            u = np.linalg.solve(ridged, delta)
            w = u / (1 - pi * (1 - pi) * (delta @ u))
            b = -0.5 * (m1 + m0) @ w + math.log(n1 / n0)
            weights[s, c] = w * inverse
            intercept[s, c] = b - mean @ (w * inverse)
            present[s, c] = True
    return weights, intercept, present


def regress(
    features: Array, residual: Array, ridge: float, weight: Array | None = None
) -> tuple[Array, Array]:
    """Return weights (1, C, D) and intercept (1, C) of the ridge regression of residual (n, C).

    features (n, D), residual and weight (n,) are those of the training images only; the prediction
    is features @ weights[0].T + intercept[0] on raw features, the mean residual included.
    """
    weight = np.ones(len(features)) if weight is None else weight
    n = weight.sum()
    x, mean, inverse = standardize(features, weight)
    ridged = ridged_scatter(x, weight, inverse, ridge)
    mean_residual = weight @ residual / n
    v = np.linalg.solve(ridged, (weight[:, None] * x).T @ (residual - mean_residual) / n)
    weights = v.T * inverse
    intercept = mean_residual - weights @ mean
    return weights[None], intercept[None]


# ------------------------------------------------------------------------ step 10: probabilities


def probabilities(scores: Array, present: Array, spec: Any) -> Array:
    """Return P (N, C) of one sign's scores (N, C); classes that are not present (C,) get 0."""
    n, n_classes = scores.shape
    result = np.zeros((n, n_classes))
    if not present.any():
        return result
    for i in range(n):
        if spec.probability == "sigmoid":
            for c in range(n_classes):
                if present[c]:
                    # tanh form of 1 / (1 + exp(-score / sigma)), which cannot overflow
                    result[i, c] = 0.5 * (1.0 + math.tanh(0.5 * scores[i, c] / spec.sigma))
        elif spec.probability == "softmax":
            logits = spec.beta * scores[i, present]
            exponentials = np.exp(logits - logits.max())
            result[i, present] = exponentials / exponentials.sum()
        else:
            raise ValueError(f"probability {spec.probability!r}")
    return result


# -------------------------------------------------------------- step 11: update, and all layers


def learning_rate(layer: int, spec: Any) -> float:
    """Return the learning rate of a layer (1-based)."""
    steps = (layer - 1) // spec.decay_every
    return max(spec.rate_floor, spec.learning_rate * (1 - spec.decay) ** steps)


def train(
    images: Array,
    labels: Array,
    spec: Any,
    seed: int,
    n_layers: int,
    training: Array | None = None,
    weight: Array | None = None,
) -> tuple[tuple[Array, Array], list[OracleLayer]]:
    """Grow n_layers on images (N, H, W, d) and labels (N,), fitted to those where training (N,).

    An image counts as weight (N,) images, by default 1. Returns (image_low (d,), image_scale (d,))
    and the layers.
    """
    labels = np.asarray(labels).astype(np.int64)
    if training is None:
        training = np.ones(len(labels), dtype=bool)
    training = np.asarray(training, dtype=bool)
    n_classes = int(labels[training].max()) + 1
    weight = np.ones(len(labels)) if weight is None else np.asarray(weight, dtype=np.float64)

    x = np.asarray(images).astype(np.float64)
    image_low, image_scale = min_max(x[training], spec.minmax)
    contrast = local_contrast(x) if spec.local_contrast else None
    x = (x - image_low) * image_scale
    if contrast is not None:
        x = np.concatenate([x, contrast], axis=3)

    y = one_hot(labels, n_classes)
    scores = np.zeros((len(labels), n_classes))
    layers: list[OracleLayer] = []
    for i in range(1, n_layers + 1):
        # 1. input and min-max
        k = spec.first_filter_size if i == 1 else spec.filter_size
        raw = x
        if i > 1:
            raw = layers[-1].maps
            if spec.concatenate:
                raw = np.concatenate([raw, x], axis=3)
        low, scale = np.zeros(raw.shape[3]), np.zeros(raw.shape[3])
        for own, _ in towers(spec, i, raw.shape[3]):
            low[own], scale[own] = min_max(raw[training][..., own], spec.minmax)
        z = (raw - low) * scale

        # 2. to 5. filters and maps
        filters, bias = filter_bank(z, labels, training, n_classes, k, spec, seed, i, weight)
        maps = convolve(z, filters, bias)
        if spec.rectify:
            maps = np.maximum(maps, 0.0)

        # 6. and 7. features
        features = second_order_features(maps, spec)

        # 8. to 11. labels, classifiers, probabilities, update
        rate = learning_rate(i, spec)
        if spec.head.name == "classify":
            if i == 1:
                classes = labels
                signs = np.ones(len(labels), dtype=np.int64)
            else:
                classes, signs = residual_labels(scores, labels, spec.target)
            weights, intercept, present = one_vs_rest(
                features[training],
                classes[training],
                signs[training],
                n_classes,
                spec.ridge,
                weight[training],
            )
            n_p = weight[training & (signs == 1)].sum()
            n_n = weight[training & (signs == -1)].sum()
            share = np.array([n_p, n_n]) / weight[training].sum()
            positive = features @ weights[0].T + intercept[0]
            negative = features @ weights[1].T + intercept[1]
            p_pos = probabilities(positive, present[0], spec)
            p_neg = probabilities(negative, present[1], spec)
            scores = scores + rate * (share[0] * p_pos - share[1] * p_neg)
        elif spec.head.name == "regress":
            residual = y - scores
            weights, intercept = regress(
                features[training], residual[training], spec.ridge, weight[training]
            )
            present = np.ones((1, n_classes), dtype=bool)
            share = np.array([1.0])
            scores = scores + rate * (features @ weights[0].T + intercept[0])
        else:
            raise ValueError(f"head {spec.head!r}")

        layers.append(
            OracleLayer(
                low=low,
                scale=scale,
                filters=filters,
                bias=bias,
                maps=maps,
                features=features,
                weights=weights,
                intercept=intercept,
                present=present,
                share=share,
                rate=rate,
                scores=scores,
            )
        )
    return (image_low, image_scale), layers
