"""A small HTTP service for a network: health checks, and predictions of arrays and photos.

    NETWORK=net.zip uvicorn --app-dir deploy/serving service:app --limit-concurrency 32

Configured by environment variables: NETWORK, a run or a saved network at any fsspec URL; MAX_IMAGES
and MAX_BODY_BYTES of a request; MAX_PHOTO_PIXELS.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from PIL import Image, UnidentifiedImageError

import rescnet_dist as rd

MAX_IMAGES = int(os.environ.get("MAX_IMAGES", 64))
MAX_BODY_BYTES = int(os.environ.get("MAX_BODY_BYTES", 32 * 2**20))
MAX_PHOTO_PIXELS = int(os.environ.get("MAX_PHOTO_PIXELS", 32 * 2**20))
PHOTO_FORMATS = ("PNG", "JPEG", "WEBP")  # Others, such as EPS, run programs to be decoded.

logger = logging.getLogger("uvicorn.error")


class Service:
    """A network that is loaded in the background; predictions run one at a time."""

    def __init__(self) -> None:
        self.classifier: rd.ResCNetClassifier | None = None
        self.failure: str | None = None
        self.lock = threading.Lock()  # a prediction uses all cores

    def load(self, url: str) -> None:
        """Load the network, and predict once, so that kernels are compiled."""
        try:
            classifier = rd.load(url)
            classifier.network_ = classifier.network_.in_memory()
            low, high = classifier.network_.trained_range
            shape = (1, *classifier.network_.image_shape)
            classifier.predict(np.random.default_rng(0).uniform(low, high, shape))
            self.classifier = classifier
        except Exception as error:  # whatever it is, the probes must fail
            self.failure = f"The network cannot be loaded: {error}"
            logger.error(self.failure, exc_info=not isinstance(error, rd.RescnetError))

    def get_classifier(self) -> rd.ResCNetClassifier:
        """Return the classifier; answer 503 if it is not loaded."""
        if self.classifier is None:
            raise HTTPException(503, self.failure or "The network is being loaded. Try again.")
        return self.classifier

    def predict_arrays(self, body: bytes) -> dict[str, Any]:
        """Predict the images (n, H, W, d) of a JSON object."""
        classifier = self.get_classifier()
        shape = classifier.network_.image_shape
        images = parse_images(body, shape)
        with self.lock, record_warnings() as messages:
            probabilities = np.asarray(classifier.predict_proba(images))
        labels = classifier.classes_[probabilities.argmax(axis=1)]
        return make_answer(classifier, labels.tolist(), probabilities, messages)

    def predict_photo(self, body: bytes) -> dict[str, Any]:
        """Predict the photo of an image file, of any size."""
        classifier = self.get_classifier()
        try:
            with Image.open(io.BytesIO(body), formats=PHOTO_FORMATS) as photo:
                width, height = photo.size
                if width * height > MAX_PHOTO_PIXELS:
                    found = f"{width}×{height} pixels, more than {MAX_PHOTO_PIXELS}"
                    raise HTTPException(413, f"The photo has {found}. Send a smaller one.")
                with self.lock, record_warnings() as messages:
                    prediction = classifier.predict_image(photo)
        except (HTTPException, rd.RescnetError):
            raise
        except UnidentifiedImageError:
            raise HTTPException(422, "The body is not a PNG, JPEG or WebP image.") from None
        except Exception as error:  # Pillow's plugins raise all kinds.
            raise HTTPException(422, f"The image cannot be read: {error}") from None
        probabilities = prediction.probabilities[np.newaxis]
        return make_answer(classifier, [prediction.label], probabilities, messages)


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Yield a list that has the warnings for users at the end; use it in one thread at a time."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield messages
    messages += [str(entry.message) for entry in caught if entry.category is UserWarning]


def make_answer(
    classifier: rd.ResCNetClassifier,
    labels: list[Any],
    probabilities: np.ndarray[Any, Any],
    messages: list[str],
) -> dict[str, Any]:
    """Return the answer for n labels and probabilities (n, C), with `warning` if there is any."""
    answer = {
        "label": labels,
        "probabilities": probabilities.tolist(),
        "classes": classifier.classes_.tolist(),  # of the columns of probabilities
    }
    return {**answer, "warning": " ".join(messages)} if messages else answer


def parse_images(body: bytes, shape: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Return the images (n, H, W, d) of a body; answer 400, 413 or 422 if they are not valid."""
    form = f'Send {{"images": …}} with an array of shape (n, {", ".join(map(str, shape))}).'
    try:
        content = json.loads(body)
    except (RecursionError, ValueError) as error:
        raise HTTPException(400, f"The body is not JSON: {error}") from None
    if not isinstance(content, dict) or "images" not in content:
        raise HTTPException(422, f"The body has no images. {form}")
    try:
        images = np.asarray(content["images"], np.float32)
    except (OverflowError, TypeError, ValueError):
        raise HTTPException(422, f"images is not an array of numbers. {form}") from None
    if images.ndim != 4 or images.shape[1:] != tuple(shape) or not len(images):
        raise HTTPException(422, f"images has shape {images.shape}. {form}")
    if len(images) > MAX_IMAGES:
        raise HTTPException(413, f"There are {len(images)} images. Send at most {MAX_IMAGES}.")
    if not np.isfinite(images).all():
        raise HTTPException(422, f"images has values that are not finite. {form}")
    return images


async def read_body(request: Request) -> bytes:
    """Return the body of a request; answer 413 as soon as it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body has more than {MAX_BODY_BYTES} bytes. Send less.")
    return bytes(body)


service = Service()


@asynccontextmanager
async def load_in_background(_: FastAPI) -> AsyncIterator[None]:
    """Load the network while the service already answers that it is alive."""
    if "NETWORK" not in os.environ:
        raise RuntimeError("NETWORK is not set. Set it to the URL of a run or a saved network.")
    loading = asyncio.get_running_loop().run_in_executor(None, service.load, os.environ["NETWORK"])
    yield
    await loading


app = FastAPI(title="rescnet", lifespan=load_in_background)


@app.get("/health/live")
def live() -> dict[str, str]:
    """Answer that the process runs; 500 if its network cannot be loaded, for a restart."""
    if service.failure:
        raise HTTPException(500, service.failure)
    return {"status": "live"}


@app.get("/health/ready")
def ready() -> dict[str, Any]:
    """Answer that predictions can be asked for, and what they are of."""
    network = service.get_classifier().network_
    return {
        "status": "ready",
        "image_shape": list(network.image_shape),
        "classes": network.classes.tolist(),
    }


@app.post("/predict")
async def predict(request: Request) -> dict[str, Any]:
    """Predict arrays in JSON, or the photo of an image file that is the body."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        function = service.predict_arrays
    elif kind.startswith("image/"):
        function = service.predict_photo
    else:
        found = f"The Content-Type is {kind}." if kind else "The request has no Content-Type."
        remedy = "Send application/json, image/png, image/jpeg or image/webp."
        raise HTTPException(415, f"{found} {remedy}")
    body = await read_body(request)
    try:
        return await asyncio.to_thread(function, body)
    except rd.RescnetError as error:
        raise HTTPException(422, str(error)) from None
