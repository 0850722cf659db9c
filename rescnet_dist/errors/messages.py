"""Parts of messages: masked secrets, counts, values and the names that there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SECRET_PATTERNS = (
    re.compile(r"(?<=://)[^/\s]+(?=@)"),  # user:password@
    re.compile(
        r"(?i)(?<=[?&;])([\w-]*(?:sig|signature|token|sas|key|secret|password|credential)=)"
        r"[^&;\s'\"]+"
    ),
)

MAX_VALUE_LENGTH = 200  # of a value in a message
MAX_SUGGESTED_NAMES = 20  # of options, of which the closest is named


def mask_secrets(text: str) -> str:
    """Replace the secrets of URLs in a text by asterisks.

    >>> mask_secrets("https://me:word@host/a.zarr?sig=abc&x=1")
    'https://***@host/a.zarr?sig=***&x=1'

    A password is also replaced where a library repeats a part of the URL:

    >>> mask_secrets('s3://me:word@host/a cannot be reached: Invalid bucket name "me:word@host"')
    's3://***@host/a cannot be reached: Invalid bucket name "***@host"'
    """
    for secret in SECRET_PATTERNS[0].findall(text):
        text = text.replace(secret, "***") if ":" in secret else text
    text = SECRET_PATTERNS[0].sub("***", text)
    return SECRET_PATTERNS[1].sub(r"\g<1>***", text)


def pluralize(number: int, noun: str) -> str:
    """Return a count and its noun, for nouns whose plural ends in s or es.

    >>> pluralize(1, "layer"), pluralize(1200, "class")
    ('1 layer', '1,200 classes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def shorten_repr(value: object) -> str:
    """Return the representation of a value for a message, without its middle if it is long.

    >>> shorten_repr([1, "a"])
    "[1, 'a']"
    >>> len(shorten_repr(list(range(1000))))
    200
    """
    text, half = repr(value), (MAX_VALUE_LENGTH - 3) // 2
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    return f"{text[: MAX_VALUE_LENGTH - 3 - half]} … {text[-half:]}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return sentences for error messages: the closest known name, if any, and all known names.

    If there is a close one, more than MAX_SUGGESTED_NAMES names are left out.

    >>> suggest_name("cifar", ["mnist", "cifar10"])
    "Did you mean 'cifar10'? Known: cifar10, mnist."
    """
    names = sorted(known)
    if not names:
        return "There are none."
    closest = suggest_closest(name, names)
    if closest and len(names) > MAX_SUGGESTED_NAMES:
        return closest
    return f"{closest} Known: {', '.join(names)}.".lstrip()


def suggest_closest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known name, in any case; empty if none is close.

    >>> suggest_closest("stroe", ["auto", "memory", "store"])
    "Did you mean 'store'?"
    >>> suggest_closest("PCANet", ["pcanet", "randnet"])
    "Did you mean 'pcanet'?"
    """
    names = {own.lower(): own for own in sorted(known)}
    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f"Did you mean {names[close[0]]!r}?" if close else ""


def is_path(url: str) -> bool:
    """Return whether a URL is a path of this machine, without a protocol.

    >>> is_path("runs/1"), is_path("s3://bucket/runs/1")
    (True, False)
    """
    return "://" not in url


def url_word(url: str) -> str:
    """Return what a message calls a URL: "path" if it is one, else "URL"."""
    return "path" if is_path(url) else "URL"
