"""A small ResNet trained by backpropagation in PyTorch, to compare results with.

It needs PyTorch: `pip install -e ".[bench]"`. Images stay on the device, a GPU if there is one.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rescnet_dist.bench.peers import torch
from rescnet_dist.errors import RescnetError
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]

EVALUATED_IMAGES = 1000  # at a time


@dataclass(frozen=True, slots=True)
class Baseline:
    """Settings of the ResNet and of its training: SGD with momentum and a one-cycle learning rate.

    `blocks` residual blocks for each of three widths: `width`, twice and four times as many maps.
    There are at least `epochs` epochs and at least `steps` steps, so that training converges on few
    images too. Images are mirrored and shifted at random only if the network's copies are.
    """

    width: int = 32
    blocks: int = 2
    epochs: int = 60
    steps: int = 6000
    batch_images: int = 128
    peak_learning_rate: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    flip: bool = False
    shift: int = 0  # pixels

    @classmethod
    def like(cls, augment: AugmentSpec, **options: Any) -> Baseline:
        """Return the settings with the flips and shifts of a network's copies."""
        if augment.copies == 0:
            return cls(**options)
        return cls(flip=augment.flip, shift=augment.shift, **options)

    def count_epochs(self, images: int) -> int:
        """Return the number of epochs for a number of training images."""
        return max(self.epochs, math.ceil(self.steps / self.count_batches(images)))

    def count_batches(self, images: int) -> int:
        """Return the number of batches of an epoch; they are of nearly equal size."""
        return math.ceil(images / self.batch_images)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-serializable values."""
        return asdict(self)


DEFAULT = Baseline()


def require_torch() -> Any:
    """Import PyTorch; raise RescnetError if it is not installed."""
    library = torch()
    if library is None:
        raise RescnetError('PyTorch is not installed. Run pip install -e ".[bench]".')
    return library


def build(settings: Baseline, channels: int, classes: int) -> Any:
    """Return the network: a 3×3 convolution, residual blocks, mean over pixels, linear layer."""
    nn = require_torch().nn

    class Block(nn.Module):  # type: ignore[name-defined]
        """Two 3×3 convolutions with batch norm, added to their input."""

        def __init__(self, inputs: int, maps: int, stride: int) -> None:
            super().__init__()
            self.stride = stride
            self.body = nn.Sequential(
                nn.Conv2d(inputs, maps, 3, stride, 1, bias=False),
                nn.BatchNorm2d(maps),
                nn.ReLU(inplace=True),
                nn.Conv2d(maps, maps, 3, 1, 1, bias=False),
                nn.BatchNorm2d(maps),
            )
            self.shortcut = (
                nn.Identity()
                if inputs == maps and stride == 1
                else nn.Sequential(nn.Conv2d(inputs, maps, 1, bias=False), nn.BatchNorm2d(maps))
            )

        def forward(self, x: Any) -> Any:
            # Not a 1×1 convolution with this stride: for few maps with channels last, its
            # gradient writes past a buffer on a CPU with AVX-512 (oneDNN 3.12, PyTorch 2.13).
            shortcut = self.shortcut(x[:, :, :: self.stride, :: self.stride])
            return nn.functional.relu(self.body(x) + shortcut)

    width = settings.width
    layers = [
        nn.Conv2d(channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    maps = width
    for stage in range(3):
        for block in range(settings.blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(maps, width << stage, stride))
            maps = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(maps, classes))


class Images:
    """Images (n, H, W, d) and codes (n,) as tensors on the device, images channels first."""

    def __init__(self, images: Array, codes: Array, device: Any) -> None:
        library = require_torch()
        pixels = np.ascontiguousarray(np.asarray(images).transpose(0, 3, 1, 2))
        self.pixels = library.from_numpy(pixels).to(device)
        self.codes = library.from_numpy(np.asarray(codes).astype(np.int64)).to(device)

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained baseline: the network of its best epoch, and what was measured.

    `curve` has the training loss, the accuracy on held-out images and the seconds since the start
    of training after each epoch. `mean` and `deviation` are those of the channels.
    """

    network: Any
    mean: Any
    deviation: Any
    epoch: int
    curve: list[dict[str, float]]
    device: str

    def accuracy(self, images: Array, codes: Array) -> float:
        """Return the accuracy on images (n, H, W, d) with codes (n,)."""
        data = Images(images, codes, self.mean.device)
        return evaluate(self.network, data, self.mean, self.deviation)


def train(
    settings: Baseline,
    training: tuple[Array, Array],
    held_out: tuple[Array, Array],
    *,
    classes: int,
    seed: int,
    report: Callable[[dict[str, float]], None] = lambda _: None,
) -> Trained:
    """Train on images (n, H, W, d) with codes (n,); keep the epoch that is best on held-out ones.

    Seconds include the evaluation of the held-out images, as those of a layer do.
    """
    library = require_torch()
    device = library.device("cuda" if library.cuda.is_available() else "cpu")
    library.manual_seed(seed)
    library.set_float32_matmul_precision("high")
    library.backends.cudnn.benchmark = True
    data, validation = Images(*training, device), Images(*held_out, device)
    mean, deviation = channel_moments(data)
    network = build(settings, data.pixels.shape[1], classes).to(device)
    optimizer = library.optim.SGD(
        network.parameters(),
        lr=settings.peak_learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=True,
    )
    epochs, batches = settings.count_epochs(len(data)), settings.count_batches(len(data))
    schedule = library.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.peak_learning_rate, total_steps=epochs * batches
    )
    curve, best, kept = list[dict[str, float]](), -1.0, None
    _wait(device)
    started = time.perf_counter()
    for epoch in range(1, epochs + 1):
        network.train()
        losses = []
        for pixels, codes in draw_batches(data, batches, settings):
            optimizer.zero_grad(set_to_none=True)
            scores = network(normalize(pixels, mean, deviation))
            loss = library.nn.functional.cross_entropy(scores, codes)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        accuracy = evaluate(network, validation, mean, deviation)
        _wait(device)
        entry = {
            "epoch": epoch,
            "loss": float(library.stack(losses).mean()),
            "validation": accuracy,
            "seconds": time.perf_counter() - started,
        }
        curve.append(entry)
        report(entry)
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
    chosen = 1 + int(np.argmax([entry["validation"] for entry in curve]))
    name = library.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Trained(network, mean, deviation, chosen, curve, name)


def draw_batches(data: Images, batches: int, settings: Baseline) -> Iterator[tuple[Any, Any]]:
    """Yield the images and codes of an epoch in a random order, mirrored and shifted at random."""
    library = require_torch()
    order = library.randperm(len(data), device=data.codes.device)
    for rows in library.tensor_split(order, batches):
        pixels, codes = data.pixels[rows], data.codes[rows]
        if settings.flip:
            mirrored = library.rand(len(rows), 1, 1, 1, device=rows.device) < 0.5
            pixels = library.where(mirrored, pixels.flip(3), pixels)
        yield (shift_images(pixels, settings.shift) if settings.shift else pixels), codes


def shift_images(pixels: Any, shift: int) -> Any:
    """Shift each image (n, d, H, W) by up to `shift` pixels at random; reflect at the edges."""
    library = require_torch()
    n, _, height, width = pixels.shape
    padded = library.nn.functional.pad(pixels.float(), (shift,) * 4, mode="reflect")
    tops, lefts = library.randint(0, 2 * shift + 1, (2, n, 1), device=pixels.device)
    rows = tops + library.arange(height, device=pixels.device)
    columns = lefts + library.arange(width, device=pixels.device)
    image = library.arange(n, device=pixels.device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def channel_moments(data: Images) -> tuple[Any, Any]:
    """Return the mean and the deviation (1, d, 1, 1) of the channels of all images."""
    library = require_torch()
    deviation, mean = library.std_mean(data.pixels.float(), (0, 2, 3), keepdim=True)
    return mean, deviation.clamp_min(1e-6)


def normalize(pixels: Any, mean: Any, deviation: Any) -> Any:
    """Return images (n, d, H, W) in single precision, with mean 0 and deviation 1 by channel."""
    return (pixels.float() - mean) / deviation


def evaluate(network: Any, data: Images, mean: Any, deviation: Any) -> float:
    """Return the accuracy of a network on images."""
    library, correct = require_torch(), 0
    network.eval()
    with library.no_grad():
        for start in range(0, len(data), EVALUATED_IMAGES):
            rows = slice(start, start + EVALUATED_IMAGES)
            scores = network(normalize(data.pixels[rows], mean, deviation))
            correct += int((scores.argmax(1) == data.codes[rows]).sum())
    return correct / len(data)


def _wait(device: Any) -> None:
    """Wait until the GPU is done, so that seconds are measured correctly."""
    if device.type == "cuda":
        require_torch().cuda.synchronize(device)
