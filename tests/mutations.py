"""Random damage to bytes: bits, spans, numbers and lengths, drawn from a generator."""

from __future__ import annotations

import random

EXTREME_NUMBERS = [
    0,
    1,
    127,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**48,
    2**63 - 1,
    2**64 - 1,
]


def damage(content: bytes, rng: random.Random) -> bytes:
    """Damage the content in one to three ways, half of the time near its ends."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if content:
            content = rng.choice(DAMAGE_FUNCTIONS)(content, draw_offset(content, rng), rng)
    return content


def keep(content: bytes, rng: random.Random) -> bytes:
    """Return the content unchanged."""
    return content


def draw_offset(content: bytes, rng: random.Random) -> int:
    """Draw the offset at which to damage the content."""
    span = rng.choice((16, 64, 512, len(content), len(content)))
    at = rng.randrange(min(span, len(content)))
    return at if rng.random() < 0.6 else len(content) - 1 - at


def flip_bit(content: bytes, at: int, rng: random.Random) -> bytes:
    """Flip one bit."""
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def overwrite_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Overwrite a span with zeros, ones, or random bytes."""
    size = rng.choice((1, 2, 4, 8, 100))
    new = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size)))
    return content[:at] + new + content[at + size :]


def overwrite_binary_number(content: bytes, at: int, rng: random.Random) -> bytes:
    """Overwrite bytes with a number of any size, such as a length."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("big", "little"))
    new = (rng.choice(EXTREME_NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, order)  # type: ignore[arg-type]
    return content[:at] + new + content[at + size :]


def insert_decimal_number(content: bytes, at: int, rng: random.Random) -> bytes:
    """Insert a number in digits."""
    new = str(rng.choice(EXTREME_NUMBERS)).encode()
    return content[:at] + new + content[at + rng.choice((0, len(new))) :]


def truncate(content: bytes, at: int, rng: random.Random) -> bytes:
    """Remove everything after the offset."""
    return content[:at]


def remove_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Remove a span."""
    return content[:at] + content[at + rng.choice((1, 2, 10, 512)) :]


def repeat_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Repeat a span, twice or many times."""
    span = content[at : at + rng.choice((1, 4, 64, 512))]
    return content[:at] + span * rng.choice((2, 2, 50)) + content[at + len(span) :]


DAMAGE_FUNCTIONS = (
    flip_bit,
    overwrite_span,
    overwrite_binary_number,
    insert_decimal_number,
    truncate,
    remove_span,
    repeat_span,
)
