"""Bytes between a driver and the scheduler by kind of message: what a pass sends, and what it gets.

`count_messages` replaces the `read` and `write` of Dask's TCP connections in this process. Each
message is serialized a second time to weigh it, so that CPU times of such a run say nothing.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

from distributed.comm.tcp import TCP
from distributed.protocol import dumps

FRAME_BYTES = 8  # before each frame, its length


class MessageCounter:
    """The bytes of messages, and their number, by kind."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.count: Counter[str] = Counter()

    def add(self, direction: str, message: Any, request: str | None) -> None:
        """Count a message; the messages of a stream come as a list, and answers have no name."""
        for part in message if isinstance(message, list | tuple) else [message]:
            name = describe(part) or f"answer to {request}"
            size = sum(FRAME_BYTES + memoryview(frame).nbytes for frame in dumps(part))
            self.bytes[f"{direction} {name}"] += size
            self.count[f"{direction} {name}"] += 1

    def take(self) -> dict[str, tuple[int, int]]:
        """Return bytes and number of messages by kind, the largest first, and start anew."""
        found = {kind: (size, self.count[kind]) for kind, size in self.bytes.most_common()}
        self.bytes.clear()
        self.count.clear()
        return found


def describe(message: Any) -> str | None:
    """Return what a message is: its operation, with topic or function if it has one."""
    if not isinstance(message, dict) or "op" not in message:
        return None
    detail = message.get("topic", "")
    if "function" in message:
        try:
            function = pickle.loads(message["function"])
            detail = getattr(function, "__name__", "")
        except Exception:
            detail = "?"
    return f"{message['op']} {detail}".strip().split("-", 1)[0]


def count_messages() -> MessageCounter:
    """Count the messages of all TCP connections of this process from now on."""
    counter, read, write = MessageCounter(), TCP.read, TCP.write
    requests: dict[int, str | None] = {}  # the last one of each connection

    async def counted_write(self: Any, msg: Any, *args: Any, **kwargs: Any) -> Any:
        requests[id(self)] = describe(msg)
        counter.add("sent", msg, "a greeting")
        return await write(self, msg, *args, **kwargs)

    async def counted_read(self: Any, *args: Any, **kwargs: Any) -> Any:
        message = await read(self, *args, **kwargs)
        counter.add("received", message, requests.get(id(self)))
        return message

    TCP.write, TCP.read = counted_write, counted_read  # type: ignore[method-assign]
    return counter
