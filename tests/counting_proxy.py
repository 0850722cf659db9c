"""A TCP proxy on loopback that counts the bytes that it forwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


class CountingProxy:
    """A TCP proxy on loopback that counts the bytes that it forwards."""

    def __init__(self, host: str, port: int) -> None:
        self.target, self.sent, self.received = (host, port), 0, 0
        self.ready, self.port = threading.Event(), 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.sent + self.received

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_server(self._handle, "127.0.0.1", 0, limit=2**22)
        )
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(*self.target, limit=2**22)
        await asyncio.gather(
            self._forward(reader, target_writer, "sent"),
            self._forward(target_reader, writer, "received"),
            return_exceptions=True,
        )

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counter: str
    ) -> None:
        try:
            while data := await source.read(2**20):
                setattr(self, counter, getattr(self, counter) + len(data))
                target.write(data)
                await target.drain()
        finally:
            target.close()


@contextmanager
def open_proxy(address: str) -> Iterator[CountingProxy]:
    """Open a counting proxy to an address such as tcp://127.0.0.1:8786."""
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    proxy = CountingProxy(parts.hostname, parts.port)
    proxy.thread.start()
    assert proxy.ready.wait(10)
    try:
        yield proxy
    finally:
        proxy.loop.call_soon_threadsafe(proxy.loop.stop)
        proxy.thread.join(10)
