"""A proxy in front of an S3 server: counts its requests by kind, and disturbs some of them."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import BytesIO

from aiohttp import ClientSession, DummyCookieJar, web
from multidict import CIMultiDict

HOP_HEADERS = ("Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Expect")
SLOW_DOWN = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    "<Message>Please reduce your request rate.</Message></Error>"
)
AMZ_DATE, AMZ_DATE_FORMAT = "X-Amz-Date", "%Y%m%dT%H%M%SZ"  # when a request was signed
THROTTLED = {503: SLOW_DOWN, 429: SLOW_DOWN.replace("SlowDown", "TooManyRequests")}
MAX_BODY_BYTES = 2**30


class S3Proxy:
    """An HTTP proxy on loopback that forwards requests with their signed headers.

    `requests` counts those that were forwarded, and `throttled` those that were answered with 503
    or 429, by kind: GET, HEAD, LIST, PUT, POST or DELETE. While `failing` is positive, requests
    (those of `failing_kind`, if it is set) are answered with the status and the code of `failure`
    instead; `failed` counts them.
    """

    def __init__(self, target: str) -> None:
        self.target, self.url = target, ""
        self.requests: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.share, self.rng = 0.0, random.Random(0)
        self.failing, self.failed = 0, 0
        self.failing_kind, self.failure = "", (500, "InternalError")
        self.delay_seconds = 0.0  # before each request is forwarded
        self.upload_bytes_per_second = math.inf
        self.clock_offset = timedelta(0)  # added to the time of each request
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def throttle(self, share: float, seed: int = 0) -> None:
        """Throttle a share of all requests from now on."""
        self.share, self.rng = share, random.Random(seed)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        stop = self.loop.create_future()
        self.stop = lambda: self.loop.call_soon_threadsafe(stop.set_result, None)
        self.loop.run_until_complete(self._run(stop))
        self.loop.close()

    async def _run(self, stop: asyncio.Future[None]) -> None:
        options = {"auto_decompress": False, "cookie_jar": DummyCookieJar()}
        async with ClientSession(**options) as self.session:  # type: ignore[arg-type]
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self.ready.set()
            await stop
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        kind = describe_request(request)
        if self.failing > 0 and self.failing_kind in ("", kind):
            self.failing, self.failed = self.failing - 1, self.failed + 1
            status, code = self.failure
            await request.read()
            text = SLOW_DOWN.replace("SlowDown", code)
            return web.Response(status=status, text=text, content_type="text/xml")
        if self.rng.random() < self.share:
            self.throttled[kind] += 1
            status = self.rng.choice(tuple(THROTTLED))
            await request.read()
            return web.Response(status=status, text=THROTTLED[status], content_type="text/xml")
        self.requests[kind] += 1
        await asyncio.sleep(self.delay_seconds)
        async with self.session.request(
            request.method,
            self.target + request.raw_path,
            headers=self._shift_clock(keep_headers(request.headers)),
            data=await self._receive_body(request),
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as answer:
            body = await answer.read()
            headers = keep_headers(answer.headers)
            if request.method == "HEAD":
                headers["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=headers, body=body)

    async def _receive_body(self, request: web.Request) -> BytesIO:
        """Read the body of a request, no faster than the link."""
        body = BytesIO()
        while part := await request.content.read(2**16):
            body.write(part)
            await asyncio.sleep(len(part) / self.upload_bytes_per_second)
        body.seek(0)
        return body

    def _shift_clock(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """Change the time at which a request was signed."""
        if self.clock_offset and AMZ_DATE in headers:
            signed = datetime.strptime(headers[AMZ_DATE], AMZ_DATE_FORMAT)
            headers[AMZ_DATE] = (signed + self.clock_offset).strftime(AMZ_DATE_FORMAT)
        return headers


def describe_request(request: web.Request) -> str:
    """Return the kind of a request: its method, or LIST."""
    is_list = request.method == "GET" and (
        "list-type" in request.query or "prefix" in request.query
    )
    return "LIST" if is_list else request.method


def keep_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that are not of one connection alone."""
    dropped = {name.lower() for name in HOP_HEADERS}
    return CIMultiDict((n, v) for n, v in headers.items() if n.lower() not in dropped)


@contextmanager
def open_s3_proxy(target: str) -> Iterator[S3Proxy]:
    """Open a proxy to the S3 server at a URL."""
    proxy = S3Proxy(target)
    proxy.thread.start()
    assert proxy.ready.wait(10)
    try:
        yield proxy
    finally:
        proxy.stop()
        proxy.thread.join(10)
