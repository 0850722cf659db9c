"""The one forward step of a network, by which layers are grown, replayed and predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescnet_dist.errors import CorruptDataError
from rescnet_dist.kernels import LayerInput, probe_signs
from rescnet_dist.kernels.arrays import Array, asarray_like, contiguous_copy, get_array_module
from rescnet_dist.kernels.samples import round_to_unit, sum_unit
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.bank import Tower
from rescnet_dist.model.head import SampleHead
from rescnet_dist.model.layer import Bank, FittedHead, ImageScale, Layer
from rescnet_dist.model.pixels import layer_pixels


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """What heads need to know of the n images of a chunk during training.

    Attributes
    ----------
    labels : ndarray of int, shape (n,)
        The labels. A NumPy array, as the others.
    train : ndarray of bool, shape (n,)
        Which images are training images.
    images : ndarray of int, shape (n,)
        The numbers of the images in the data. A copy has that of its original.
    first : int, default 0
        The row of the first image in the run.
    """

    labels: Array
    train: Array
    images: Array
    first: int = 0

    def select(self, rows: slice) -> TrainingRows:
        """Return the images of a slab.

        Parameters
        ----------
        rows : slice
            The rows of the slab in the chunk.

        Returns
        -------
        TrainingRows
            Its images.
        """
        own = self.labels[rows], self.train[rows], self.images[rows]
        return TrainingRows(*own, self.first + rows.start)

    @property
    def numbers(self) -> Array:
        """The rows (n,) of the images in the run."""
        return np.arange(self.first, self.first + len(self.labels))

    def signs(self, architecture: Architecture, layer: int) -> Array:
        """Draw the random signs of the images in a layer.

        Parameters
        ----------
        architecture : Architecture
            The network.
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        ndarray of float32, shape (n, s)
            The signs; s as of `Head.probe_count`. Those of a copy are those of its original.
        """
        return probe_signs(architecture.seed, layer, self.images, architecture.head.probe_count)


@dataclass(frozen=True, slots=True)
class State:
    """A chunk of n images on its way through the layers.

    Attributes
    ----------
    pixels : ndarray of shape (n, H, W, d') or None
        What layers see of the images; None if no bank will be applied.
    maps : ndarray of shape (n, H, W, f) or None
        The maps of the last layer; None before the first.
    scores : ndarray of float32, shape (n, C)
        The running scores. They enter the last layer until its head has been applied.
    features : ndarray of shape (n, D) or None
        The features of the last layer, of the network's `feature_dtype`, if they are known.
    layer : int
        The number of the last layer, 0 before the first.
    rows : TrainingRows or None
        The images during training; None in prediction, where labels are not known.
    """

    pixels: Array | None
    maps: Array | None
    scores: Array
    features: Array | None = None
    layer: int = 0
    rows: TrainingRows | None = None


def initial_state(images: Array, scale: ImageScale, architecture: Architecture) -> State:
    """Return the state of images before the first layer.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    scale : ImageScale
        Their normalization.
    architecture : Architecture
        The network.

    Returns
    -------
    State of n images
        Their pixels, no maps, and scores of 0.
    """
    pixels = layer_pixels(images, scale, architecture)
    return State(pixels, None, zero_scores(images, architecture))


def zero_scores(images: Array, architecture: Architecture) -> Array:
    """Return the scores (n, C) of images (n, …) before the first layer."""
    return get_array_module(images).zeros((len(images), architecture.classes), np.float32)


def advance(
    architecture: Architecture,
    state: State,
    *,
    head: FittedHead | None = None,
    bank: Bank | None = None,
    features: bool = False,
    next_head: FittedHead | None = None,
) -> State:
    """Finish the last layer with its head, and begin the next with its bank; each is optional.

    Growing a layer, replaying layers and predicting all are calls of this function. It works
    slab by slab in a division that depends on the shape of the chunk alone, so that all three give
    the same bits for the same chunk.

    Parameters
    ----------
    architecture : Architecture
        The network.
    state : State of n images
        The state before.
    head : FittedHead, optional
        The head of the last layer, which updates the scores.
    bank : Bank, optional
        The filters of the next layer, which make its maps.
    features : bool, default False
        Whether to compute the features of the new maps, while these are in the cache.
    next_head : FittedHead, optional
        The head of the next layer, which updates the scores once its maps are made: the next layer
        is finished, too.

    Returns
    -------
    State of n images
        The state after, with new arrays for what has changed.
    """
    xp, (height, width, _) = get_array_module(state.scores), architecture.image_shape
    n, maps, scores, next_layer = len(state.scores), state.maps, state.scores, state.layer + 1
    if head is not None or next_head is not None:
        scores = xp.empty_like(state.scores)
    if bank is not None:
        maps = xp.empty((n, height, width, architecture.map_count(next_layer)), np.float32)
    towers = () if bank is None else architecture.towers(next_layer)
    new_features = None
    if features:
        shape = n, architecture.feature_count(next_layer)
        new_features = xp.empty(shape, architecture.feature_dtype)
    for rows in architecture.slabs(state.scores):
        training = None if state.rows is None else state.rows.select(rows)
        old_maps = None if state.maps is None else state.maps[rows].astype(np.float32, copy=False)
        slab_scores = state.scores[rows]
        if head is not None:
            if isinstance(architecture.head, SampleHead):
                assert training is not None
                slab_scores = _add_known(architecture.head, head, slab_scores, training)
            else:
                old_features = _get_features(architecture, state, old_maps, rows)
                slab_scores = _update_scores(
                    architecture, head, slab_scores, old_features, state.layer, training
                )
        if bank is not None:
            assert state.pixels is not None
            assert maps is not None
            inputs = layer_input(architecture, state.pixels[rows], old_maps)
            _write_maps(architecture, bank, towers, inputs, maps[rows])
            if new_features is not None or next_head is not None:
                slab_features = architecture.extract(maps[rows], next_layer)
                if new_features is not None:
                    new_features[rows] = slab_features
                if next_head is not None:
                    slab_scores = _update_scores(
                        architecture, next_head, slab_scores, slab_features, next_layer, training
                    )
        if scores is not state.scores:
            scores[rows] = slab_scores
    if bank is None:
        return replace(state, scores=scores)
    return State(state.pixels, maps, scores, new_features, next_layer, state.rows)


def layer_input(
    architecture: Architecture, pixels: Array, maps: Array | None, weights: Array | None = None
) -> LayerInput:
    """Return the input of the next layer of images with these pixels (n, H, W, d') and maps.

    maps (n, H, W, f) are those of the last layer, None before the first; weights (n,) are those of
    `LayerInput`.
    """
    if maps is None or architecture.concatenate:
        return LayerInput.of(pixels, maps, weights)
    return LayerInput.of(maps, None, weights)


def _get_features(
    architecture: Architecture, state: State, maps: Array | None, rows: slice
) -> Array:
    """Return the features (m, D) of a slab with these maps (m, H, W, f)."""
    if state.features is not None:
        return contiguous_copy(state.features[rows])
    assert maps is not None
    return architecture.extract(maps, state.layer)


def _update_scores(
    architecture: Architecture,
    head: FittedHead,
    scores: Array,
    features: Array,
    layer: int,
    rows: TrainingRows | None,
) -> Array:
    """Return the scores (m, C) of a slab after the head of the layer with these features (m, D)."""
    features = features.astype(np.float32, copy=False)
    correction = architecture.head.correction(head.arrays, features)
    if rows is not None and architecture.head.probe_count and rows.train.any():
        labels, train = (asarray_like(array, scores) for array in (rows.labels, rows.train))
        trained = architecture.head.training_correction(
            head.arrays, features, correction, scores, labels, rows.signs(architecture, layer)
        )
        correction = np.where(train[:, None], trained, correction)
    return (scores + head.rate * correction).astype(np.float32)


def _add_known(kind: SampleHead, head: FittedHead, scores: Array, rows: TrainingRows) -> Array:
    """Return the scores (m, C) of images of the run after a head that knows its updates."""
    correction = kind.known_correction(head.arrays, rows.numbers)
    return (scores + head.rate * asarray_like(correction, scores)).astype(np.float32)


def _write_maps(
    architecture: Architecture,
    bank: Bank,
    towers: Sequence[Tower],
    inputs: LayerInput,
    into: Array,
) -> None:
    """Write the maps of a slab to `into` (m, H, W, f).

    They are rounded to the stored precision, so that they equal those read from the store.
    """
    maps = into
    if any(tower.is_each for tower in towers):
        for tower in towers:
            _write_tower(bank, tower, inputs, into)
    else:
        bank.maps(inputs, into)
    if architecture.rectify:
        np.maximum(maps, 0, out=maps)
    if architecture.store_dtype != "float32":
        maps[...] = maps.astype(architecture.store_dtype)


def _write_tower(bank: Bank, tower: Tower, inputs: LayerInput, into: Array) -> None:
    """Write the maps of one tower to its part of `into` (m, H, W, f)."""
    if not tower.is_each:
        into[..., tower.filters] = bank.select(tower.filters).maps(inputs)
        return
    for _, group in tower.groups:
        into[..., group.filters] = bank.select(group.filters).each_maps(inputs, group.channels)


def forward(
    architecture: Architecture, state: State, layers: Iterable[Layer], *, heads: bool = True
) -> Iterator[State]:
    """Run layers forward.

    Parameters
    ----------
    architecture : Architecture
        The network.
    state : State
        The state before the layers, as of `initial_state`.
    layers : iterable of Layer
        The layers, one after the other.
    heads : bool, default True
        Whether heads update the scores. Without them no features are computed.

    Yields
    ------
    State
        The state after each layer: its maps, and the scores that its head has updated.
    """
    for layer in layers:
        head = layer.head if heads else None
        state = advance(architecture, state, bank=layer.bank, next_head=head)
        yield state


def compare_forward(
    architecture: Architecture,
    state: State,
    groups: Iterable[Sequence[tuple[slice, State]]],
    get_layers: Callable[[], Iterable[Layer]],
) -> Array:
    """Run layers forward whose heads compare images with training images.

    Both run forward side by side, with one group of the training images after the other. Of the
    group, only the maps of the last layer are kept in memory.

    Sums are exact, so those of some training images and of others can be added in any order: bits
    depend on the blocks alone, not on which are in a group or a call.

    Parameters
    ----------
    architecture : Architecture
        The network.
    state : State of n images
        The state of the images before the layers, as of `initial_state`.
    groups : iterable of sequence of (slice, State)
        Blocks of training images: which of all they are, and their states before the layers.
    get_layers : callable
        Returns the L layers, one after the other; called for each group.

    Returns
    -------
    ndarray of float64, shape (L, n, C)
        The sums of what these training images add to the scores in each layer, before the learning
        rate is applied; 0 in layers without a head.
    """
    kind = architecture.head
    assert isinstance(kind, SampleHead)
    xp, totals, units = get_array_module(state.scores), list[Array](), list[float]()
    for group in groups:
        trained, current = list(group), state
        for number, layer in enumerate(get_layers()):
            head = layer.head
            if number == len(totals):
                totals.append(xp.zeros(state.scores.shape, np.float64))
                units.append(sum_unit(kind.bound(head.arrays)) if head else 1.0)
            current = advance(architecture, current, bank=layer.bank, features=head is not None)
            blocks = _advance_blocks(architecture, trained, layer)
            if head is None:
                for _ in blocks:
                    pass
                continue
            own = _round_features(architecture, current)
            for addition in kind.compare(head.arrays, own, blocks):
                totals[number] += round_to_unit(addition, units[number])
            current = replace(current, features=None)
    return xp.stack(totals)


def _advance_blocks(
    architecture: Architecture, blocks: list[tuple[slice, State]], layer: Layer
) -> Iterator[tuple[slice, Array]]:
    """Replace the states of blocks by those after a layer; yield their features (m, D), if any."""
    has_head = layer.head is not None
    for index, (rows, before) in enumerate(blocks):
        after = advance(architecture, before, bank=layer.bank, features=has_head)
        assert after.maps is not None
        maps = after.maps.astype(architecture.store_dtype, copy=False)
        blocks[index] = rows, replace(after, maps=maps, features=None)
        if has_head:
            yield rows, _round_features(architecture, after)


def _round_features(architecture: Architecture, state: State) -> Array:
    """Return the features (n, D) of a state, as precise as those that heads were fitted to."""
    assert state.features is not None
    return state.features.astype(architecture.store_dtype, copy=False)


def add_corrections(state: State, layers: Iterable[Layer], corrections: Array) -> Iterator[State]:
    """Update scores by what heads have found by comparing images with all training images.

    Parameters
    ----------
    state : State of n images
        The state of the images before the layers.
    layers : iterable of Layer
        The L layers, one after the other.
    corrections : ndarray of float64, shape (L, n, C)
        The sums of `compare_forward` over all training images.

    Yields
    ------
    State
        The state of the images after each layer, without maps.
    """
    state = replace(state, pixels=None)
    for number, (layer, correction) in enumerate(zip(layers, corrections, strict=False), start=1):
        if layer.head is not None:
            rounded = correction.astype(np.float32)
            scores = (state.scores + layer.head.rate * rounded).astype(np.float32)
            state = replace(state, scores=scores)
        yield replace(state, layer=number)


def check_sample_count(count: int, found: int) -> None:
    """Raise CorruptDataError if not all training images were found, or more than there were.

    Parameters
    ----------
    count : int
        The number of images that the heads were fitted to, as of `SampleHead.sample_count`.
    found : int
        The number of images found.
    """
    if found != count:
        raise CorruptDataError(
            f"The network was trained on {count:,} images, of which {found:,} were found. "
            "Restore the data that it was trained on, or train again."
        )


def replay(architecture: Architecture, state: State, layers: Iterable[Layer]) -> State:
    """Recompute the state in which the last of some layers was left when it was grown.

    The maps are bit for bit those that the pass of that layer made of the chunk, and the scores
    those that entered it.

    Parameters
    ----------
    architecture : Architecture
        The network.
    state : State
        The state before the first of the layers, as of `initial_state`; or, with maps, the state
        in which the first of the layers was left.
    layers : iterable of Layer
        The layers, one after the other.

    Returns
    -------
    State
        The state of the last layer, whose head has not been applied.
    """
    previous: Layer | None = None
    for layer in layers:
        if previous is not None:
            state = advance(architecture, state, head=previous.head, bank=layer.bank)
        elif state.maps is None:
            state = advance(architecture, state, bank=layer.bank)
        previous = layer
    return state
