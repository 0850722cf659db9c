"""Test augmentation against plain loops, and that a copy depends on (seed, image, copy) only."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist import AugmentSpec, SpecError
from rescnet_dist.kernels import Augmentation, augment_images, uniforms
from rescnet_dist.kernels import augment as augment_module
from rescnet_dist.kernels.augment import Draw
from rescnet_dist.kernels.copy_parameters import LUMA, PADDINGS, CopyParameters

Array = np.ndarray[Any, Any]
SEED = 7

SINGLE_CHANGES: dict[str, dict[str, Any]] = {
    "flip": {"flip": True},
    "flip_vertical": {"flip_vertical": True},
    "both flips": {"flip": True, "flip_vertical": True},
    "shift": {"shift": 3},
    "crop": {"crop": 0.6},
    "rotate": {"rotate": 40.0},
    "scale": {"scale": 0.5},
    "brightness": {"brightness": 0.5},
    "contrast": {"contrast": 0.5},
    "saturation": {"saturation": 0.9},
    "cutout": {"cutout": 4},
    "noise": {"noise": 0.1},
}
COMBINED_CHANGES: dict[str, dict[str, Any]] = {
    "flip, shift and crop": {"flip": True, "shift": 2, "crop": 0.7},
    "all geometry": {"flip": True, "shift": 2, "crop": 0.7, "rotate": 20.0, "scale": 0.2},
    "everything": {
        **{"flip": True, "flip_vertical": True, "shift": 2, "crop": 0.7, "rotate": 20.0},
        **{"scale": 0.2, "brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "cutout": 3},
        **{"noise": 0.05},
    },
}
DETERMINISTIC_CHANGES = {  # noise is tested by its distribution
    name: {key: value for key, value in options.items() if key != "noise"}
    for name, options in (SINGLE_CHANGES | COMBINED_CHANGES).items()
    if name != "noise"
}
AUGMENTED_DTYPES = (
    *("bool", "uint8", "int8", "uint16", "uint32", "int64", "uint64", "float16"),
    *("float32", "float64"),
)


def make_images(rng: np.random.Generator, dtype: str = "uint8", n: int = 6) -> Array:
    """Return color images of 9×11 pixels."""
    if dtype == "uint8":
        return rng.integers(0, 256, (n, 9, 11, 3), dtype=np.uint8)
    return rng.random((n, 9, 11, 3)).astype(dtype)


def make_any_images(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return images (n, H, W, d) of any dtype, in all of its range; some floats are −0."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        images = rng.normal(size=shape).astype(kind)
        images[rng.random(shape) < 0.05] = -0.0
        return images
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


# the oracle: one pixel at a time ------------------------------------------------------------------


def oracle(image: Array, index: int, copy: int, spec: Augmentation, seed: int) -> Array:
    """Return one copy of one image (H, W, d), as the docstring of `AugmentSpec` defines it."""
    if copy == 0:
        return image

    def draw(purpose: Draw, low: float, high: float) -> float:
        return low + (high - low) * float(uniforms(seed, index, copy, int(purpose)))

    height, width, _ = image.shape
    pixels = image.astype(float)
    options = [name for name in ("flip", "flip_vertical") if getattr(spec, name)]
    flipped = {option: (copy >> bit) % 2 == 1 for bit, option in enumerate(options)}
    side = draw(Draw.CROP_SIDE, spec.crop, 1) if spec.crop < 1 else 1.0
    shift_y = math.floor(draw(Draw.SHIFT_Y, -spec.shift, spec.shift + 1)) if spec.shift else 0
    shift_x = math.floor(draw(Draw.SHIFT_X, -spec.shift, spec.shift + 1)) if spec.shift else 0
    grow = (1 + spec.scale) ** draw(Draw.SCALE, -1, 1) if spec.scale else 1.0
    angle = math.radians(draw(Draw.ROTATE, -spec.rotate, spec.rotate)) if spec.rotate else 0.0
    center_y = (height - 1) / 2 + (1 - side) * height * draw(Draw.CROP_Y, -0.5, 0.5) + shift_y
    center_x = (width - 1) / 2 + (1 - side) * width * draw(Draw.CROP_X, -0.5, 0.5) + shift_x
    signs = [-1 if flipped.get(option) else 1 for option in ("flip_vertical", "flip")]
    out = np.zeros_like(pixels)
    for y in range(height):
        for x in range(width):
            down = side * grow * (y - (height - 1) / 2) * signs[0]
            right = side * grow * (x - (width - 1) / 2) * signs[1]
            out[y, x] = interpolate(
                pixels,
                center_y + math.cos(angle) * down - math.sin(angle) * right,
                center_x + math.sin(angle) * down + math.cos(angle) * right,
                spec.padding,
            )
    if spec.brightness:
        out *= draw(Draw.BRIGHTNESS, 1 - spec.brightness, 1 + spec.brightness)
    if spec.contrast:
        mean = out.mean()
        out = mean + (out - mean) * draw(Draw.CONTRAST, 1 - spec.contrast, 1 + spec.contrast)
    if spec.saturation:
        gray = (out @ np.array(LUMA))[..., None]
        out = gray + (out - gray) * draw(Draw.SATURATION, 1 - spec.saturation, 1 + spec.saturation)
    if spec.cutout:
        top = math.floor(draw(Draw.CUTOUT_Y, 0, height)) - spec.cutout // 2
        left = math.floor(draw(Draw.CUTOUT_X, 0, width)) - spec.cutout // 2
        out[max(top, 0) : top + spec.cutout, max(left, 0) : left + spec.cutout] = 0
    return out


def interpolate(pixels: Array, y: float, x: float, padding: str) -> Array:
    """Return the color (d,) of an image at a point between its pixels."""
    height, width, channels = pixels.shape
    y, x = map_inside(y, height, padding), map_inside(x, width, padding)
    if math.isnan(y) or math.isnan(x):
        return np.zeros(channels)
    total = np.zeros(channels)
    for row in range(height):
        for column in range(width):
            weight = max(0.0, 1 - abs(y - row)) * max(0.0, 1 - abs(x - column))
            total += weight * pixels[row, column]
    return total


def map_inside(location: float, side: int, padding: str) -> float:
    """Return a coordinate inside the image, or NaN where the padding is zero."""
    if padding == "reflect":
        while not 0 <= location <= side - 1:
            location = -location if location < 0 else 2 * (side - 1) - location
        return location
    inside = min(max(location, 0.0), side - 1.0)
    return math.nan if padding == "zero" and abs(location - inside) > 0.5 else inside


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "options", DETERMINISTIC_CHANGES.values(), ids=DETERMINISTIC_CHANGES.keys()
)
def test_copies_equal_plain_loops(
    rng: np.random.Generator, options: dict[str, Any], padding: str
) -> None:
    """Pixels are equal for every kind of change and for compositions of changes."""
    images = make_images(rng, "float32", 3)
    index, copy = np.array([4, 10**9, 0]), np.array([1, 2, 3])
    spec = Augmentation(padding=padding, **options)
    found = augment_images(images, index, copy, spec, SEED)
    for n in range(3):
        expected = oracle(images[n], int(index[n]), int(copy[n]), spec, SEED)
        np.testing.assert_allclose(found[n], expected, atol=2e-5)


# bits --------------------------------------------------------------------------------------------


def locate(coordinates: Array, side: int, padding: str) -> tuple[Array, Array, Array]:
    """Return the pixels at or before coordinates (…), and the weights of these and the next."""
    last = side - 1
    if padding == "reflect" and last:
        inside = np.mod(np.abs(coordinates), 2 * last)
        inside = np.where(inside <= last, inside, 2 * last - inside)
    else:
        inside = np.clip(coordinates, 0, last)
    first = np.floor(inside)
    is_inside = (padding != "zero") | (np.abs(coordinates - inside) <= 0.5)
    weights = (np.where(is_inside, w, 0) for w in (1 - (inside - first), inside - first))
    return first.astype(int), *weights


def make_copies(pixels: Array, parameters: CopyParameters) -> Array:
    """Return copies (n, H, W, d), by array operations of the same order as those of kernels."""
    n, height, width, channels = pixels.shape
    dtype, p, out = pixels.dtype.type, parameters, pixels
    if p.affine is not None:
        columns = p.affine[:, :, None, None].swapaxes(0, 1)
        center_y, center_x, step_y, step_x, cos, sin = columns
        down = step_y * (np.arange(height)[:, None] - (height - 1) / 2)
        right = step_x * (np.arange(width) - (width - 1) / 2)
        y = center_y + cos * down - sin * right
        x = center_x + sin * down + cos * right
        top, above, below = locate(y, height, p.padding)
        left, before, after = locate(x, width, p.padding)
        above, below, before, after = (
            w.astype(dtype)[..., None] for w in (above, below, before, after)
        )
        number, bottom = np.arange(n)[:, None, None], np.minimum(top + 1, height - 1)
        sides = (
            pixels[number, top, column] * above + pixels[number, bottom, column] * below + dtype(0)
            for column in (left, np.minimum(left + 1, width - 1))
        )
        one, other = sides
        out = one * before + other * after + dtype(0)
    factors = (p.brightness, p.contrast, p.saturation)
    brightness, contrast, saturation = (
        None if f is None else f.astype(dtype)[:, None, None, None] for f in factors
    )
    if brightness is not None:
        out = out * brightness
    if contrast is not None:
        sums = np.zeros((n, width * channels))
        for row in out.reshape(n, height, -1).swapaxes(0, 1):
            sums = sums + row
        mean = (np.cumsum(sums, axis=1)[:, -1] / out[0].size).astype(dtype)[:, None, None, None]
        out = mean + (out - mean) * contrast
    if saturation is not None:
        red, green, blue = (out[..., c] * dtype(np.float32(LUMA[c])) for c in range(3))
        gray = (red + green + blue)[..., None]
        out = gray + (out - gray) * saturation
    if p.corners is not None:
        out = out.copy()
        for number, (top, left) in enumerate(p.corners):
            rows, stop = slice(max(top, 0), max(top + p.cutout, 0)), max(left + p.cutout, 0)
            out[number, rows, max(left, 0) : stop] = 0
    if p.noise is not None:
        out = out + p.noise
    return out if p.limits is None else np.clip(np.rint(out), *map(dtype, p.limits))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", AUGMENTED_DTYPES)
@pytest.mark.parametrize("shape", [(9, 11, 3), (1, 5, 3), (8, 1, 1)])
def test_kernels_have_the_bits_of_array_operations(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    dtype: str,
    padding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No product is fused with a sum, and all are computed in the same order."""
    images, index, copy = (
        make_any_images(rng, (12, *shape), dtype),
        np.arange(12),
        np.arange(12) % 4,
    )
    for options in [*SINGLE_CHANGES.values(), *COMBINED_CHANGES.values()]:
        if shape[2] != 3:
            options = {key: value for key, value in options.items() if key != "saturation"}
        changes = Augmentation(padding=padding, **options)
        found = augment_images(images, index, copy, changes, SEED)
        with monkeypatch.context() as patch:
            operations = SimpleNamespace(make_copies=make_copies)
            patch.setattr(augment_module, "get_operations", lambda _, o=operations: o)
            expected = augment_images(images, index, copy, changes, SEED)
        assert found.dtype == (np.uint8 if dtype == "bool" else images.dtype)
        assert found.tobytes() == expected.tobytes(), options


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_saturation_needs_three_colors(rng: np.random.Generator, channels: int) -> None:
    """Other images have no gray."""
    images, one = rng.random((1, 8, 8, channels)), np.ones(1, int)
    with pytest.raises(ValueError, match=f"of 3 colors, but the images have {channels} channels"):
        augment_images(images, one, one, Augmentation(saturation=0.5), SEED)


# dependencies of a copy ---------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    options=st.sampled_from([*SINGLE_CHANGES.values(), *COMBINED_CHANGES.values()]),
    padding=st.sampled_from(PADDINGS),
    cuts=st.lists(st.integers(1, 39), max_size=5, unique=True).map(sorted),
    dtype=st.sampled_from(["uint8", "float32"]),
)
def test_copies_do_not_depend_on_chunking_or_order(
    options: dict[str, Any], padding: str, cuts: list[int], dtype: str
) -> None:
    """Copies are equal bit for bit."""
    rng = np.random.default_rng(1)
    images = make_images(rng, dtype, 40)
    index, copy = rng.integers(0, 10**6, 40), rng.integers(0, 4, 40)
    spec = Augmentation(padding=padding, **options)
    whole = augment_images(images, index, copy, spec, SEED)
    edges = [0, *cuts, 40]
    pieces = [
        augment_images(images[a:b], index[a:b], copy[a:b], spec, SEED) for a, b in pairwise(edges)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    order = rng.permutation(40)
    shuffled = augment_images(images[order], index[order], copy[order], spec, SEED)
    np.testing.assert_array_equal(shuffled, whole[order])


def test_copies_do_not_depend_on_slab_size(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that are processed one by one equal those processed at once."""
    images, spec = make_images(rng), Augmentation(**COMBINED_CHANGES["everything"])
    index, copy = np.arange(6), np.ones(6, int)
    whole = augment_images(images, index, copy, spec, SEED)
    monkeypatch.setattr("rescnet_dist.kernels.augment.SLAB_PIXELS", 1)
    np.testing.assert_array_equal(augment_images(images, index, copy, spec, SEED), whole)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_copies_do_not_depend_on_the_layout_of_images(rng: np.random.Generator, dtype: str) -> None:
    """Images may be a view, as of an array with channels first."""
    images, spec = make_images(rng, dtype), Augmentation(**COMBINED_CHANGES["everything"])
    index, copy = np.arange(6), np.arange(6)
    expected = augment_images(images, index, copy, spec, SEED)
    for view in (
        np.asfortranarray(images),
        np.ascontiguousarray(images.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0),
        np.ascontiguousarray(images[:, :, ::-1])[:, :, ::-1],
    ):
        np.testing.assert_array_equal(augment_images(view, index, copy, spec, SEED), expected)


@pytest.mark.parametrize("name", SINGLE_CHANGES)
def test_copies_differ_by_seed_image_and_copy(rng: np.random.Generator, name: str) -> None:
    """No copy is the original. Flips depend on the copy number only."""
    image = make_images(rng, n=1)
    same = np.repeat(image, 8, axis=0)
    spec = Augmentation(**SINGLE_CHANGES[name])
    ones = np.ones(8, int)
    by_copy = augment_images(same, ones, np.arange(1, 9), spec, SEED)
    assert len(np.unique(by_copy, axis=0)) > 1
    by_image = augment_images(same, np.arange(8), ones, spec, SEED)
    assert not np.array_equal(by_image[0], image[0])
    if "flip" not in name:
        assert len(np.unique(by_image, axis=0)) > 1
        other_seed = augment_images(same, np.arange(8), ones, spec, SEED + 1)
        assert not np.array_equal(other_seed, by_image)


def test_copy_0_is_the_original(rng: np.random.Generator) -> None:
    """This holds in a batch with other copies."""
    images, spec = make_images(rng), Augmentation(**COMBINED_CHANGES["everything"])
    copy = np.array([0, 1, 0, 2, 0, 1])
    found = augment_images(images, np.arange(6), copy, spec, SEED)
    np.testing.assert_array_equal(found[copy == 0], images[copy == 0])
    assert all((found[n] != images[n]).any() for n in np.flatnonzero(copy))


# the kinds of change ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "float32", "uint16"])
def test_one_flipped_copy_is_the_augmentation_of_the_paper(
    rng: np.random.Generator, dtype: str
) -> None:
    """Every copy is exactly the image flipped left to right."""
    images = rng.integers(0, 200, (5, 8, 8, 1)).astype(dtype)
    spec = Augmentation(flip=True)
    found = augment_images(images, np.arange(5), np.ones(5, int), spec, SEED)
    np.testing.assert_array_equal(found, images[:, :, ::-1])


def test_two_kinds_of_flip_take_turns(rng: np.random.Generator) -> None:
    """The order is left to right, top to bottom, both, none, and from the start."""
    image = make_images(rng, n=1)
    spec = Augmentation(flip=True, flip_vertical=True)
    found = augment_images(
        np.repeat(image, 5, axis=0), np.zeros(5, int), np.arange(1, 6), spec, SEED
    )
    x, y = image[0, :, ::-1], image[0, ::-1]
    for n, expected in enumerate((x, y, x[::-1], image[0], x)):
        np.testing.assert_array_equal(found[n], expected)


@pytest.mark.parametrize("padding", PADDINGS)
def test_shifts_are_whole_pixels_in_all_directions(padding: str) -> None:
    """Shifts equal NumPy's padding exactly, and all occur about equally often."""
    image = np.arange(1, 50, dtype=np.uint8).reshape(1, 7, 7, 1)
    spec, n = Augmentation(shift=2, padding=padding), 2000
    found = augment_images(np.repeat(image, n, axis=0), np.arange(n), np.ones(n, int), spec, SEED)
    mode = {"zero": "constant", "edge": "edge", "reflect": "reflect"}[padding]
    padded = np.pad(image[0, :, :, 0], 2, mode=mode)  # type: ignore[call-overload]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7)).reshape(25, 49)
    matches = (found.reshape(n, 1, 49) == windows[None]).all(axis=2)
    assert (matches.sum(axis=1) == 1).all()
    assert matches.sum(axis=0).min() > 0.6 * n / 25


def test_noise_is_normal_with_given_deviation() -> None:
    """Mean, deviation and tails are normal; pixels and images are uncorrelated."""
    images = np.zeros((200, 16, 16, 1), np.float32)
    spec = Augmentation(noise=0.1)
    noise = augment_images(images, np.arange(200), np.ones(200, int), spec, SEED)
    assert abs(noise.mean()) < 0.002
    assert noise.std() == pytest.approx(0.1, rel=0.02)
    assert (np.abs(noise) > 0.2).mean() == pytest.approx(0.0455, abs=0.004)
    assert abs(np.corrcoef(noise[:100].reshape(-1), noise[100:].reshape(-1))[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:, :, 1:].reshape(-1), noise[:, :, :-1].reshape(-1))[0, 1]) < 0.02


def test_integers_are_rounded_and_clipped() -> None:
    """Values do not wrap around, and are rounded to the nearest integer."""
    images = np.full((50, 4, 4, 1), 250, np.uint8)
    spec = Augmentation(brightness=0.5)
    found = augment_images(images, np.arange(50), np.ones(50, int), spec, SEED)
    factor = 0.5 + uniforms(SEED, np.arange(50), 1, int(Draw.BRIGHTNESS))
    expected = np.clip(np.rint(250 * factor.astype(np.float32)), 0, 255)
    np.testing.assert_array_equal(found[:, 0, 0, 0], expected)
    assert found.max() == 255


def test_uniforms_are_uniform_and_independent() -> None:
    """This holds over images, copies and purposes."""
    u = uniforms(SEED, np.arange(500)[:, None, None], np.arange(10)[:, None], np.arange(10))
    assert np.histogram(u, 10, (0, 1))[0] == pytest.approx(5000, abs=300)
    for axis in range(3):
        first, second = np.moveaxis(u, axis, 0)[:-1], np.moveaxis(u, axis, 0)[1:]
        assert abs(np.corrcoef(first.reshape(-1), second.reshape(-1))[0, 1]) < 0.02


INVALID_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "copies of nothing": ({"copies": 2}, "copies=2 would all be the same"),
    "changes of no copies": ({"flip": True}, "Use copies of at least 1"),
    "negative copies": ({"copies": -1, "flip": True}, "copies=-1 is out of range"),
    "too many copies": ({"copies": 10_001, "flip": True}, "at most 10000"),
    "no crop": ({"copies": 1, "crop": 0.0}, "crop=0.0 is out of range"),
    "a large crop": ({"copies": 1, "crop": 1.5}, "at most 1"),
    "a turn and a half": ({"copies": 1, "rotate": 270.0}, "at most 180"),
    "unknown padding": ({"copies": 1, "shift": 1, "padding": "mirror"}, "padding='mirror'"),
    "noise that is not a number": ({"copies": 1, "noise": math.nan}, "noise=nan"),
    "shift in words": ({"copies": 1, "shift": "far"}, "shift='far' is not a whole number"),
}


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS.values(), ids=INVALID_OPTIONS)
def test_invalid_augmentation_raises(options: dict[str, Any], message: str) -> None:
    """The error names the value, the limit and the remedy."""
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        AugmentSpec(**options)


def test_augmentation_unsuitable_for_images_raises() -> None:
    """Size and channels of the images are checked."""
    for options, message in (
        ({"shift": 8}, "shift=8 leaves nothing of images of 8×9 .* at most 7"),
        ({"cutout": 9}, "cutout=9 leaves nothing"),
        ({"saturation": 0.5}, r"saturation=0.5 .* 3 channels, but these have 1\."),
    ):
        with pytest.raises(SpecError, match=message):
            AugmentSpec(copies=1, **options).check_images(8, 9, 1)


def test_augmentation_has_the_options_and_defaults_of_the_spec() -> None:
    """`copies` is the only one that is not of a single copy."""
    assert asdict(Augmentation()) == AugmentSpec().copy_options
    assert {"copies": 0, **asdict(Augmentation())} == asdict(AugmentSpec())
