"""Metrics of a run for Prometheus, served by HTTP from the process of the driver."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError, mask_secrets
from rescnet_dist.events import (
    PHASES,
    Accuracy,
    ChunkDone,
    ChunkRebuilt,
    Event,
    PassDone,
    PassRetried,
    RunStarted,
    RunStopped,
    event_to_dict,
)
from rescnet_dist.formatting import url_name

STATES = ("waiting", "running", "done", "unfinished")  # waiting: for the cluster, before the run

logger = logging.getLogger(__name__)


class PrometheusExporter:
    """A listener that serves the metrics of a run to Prometheus, at http://HOST:PORT/metrics.

    Gauges describe the run that started last, and counters count since the exporter was made. It
    serves without authentication. Use it as a context manager, or call `close`, to free the port.
    Needs `pip install 'rescnet-dist[prometheus]'`.

    Parameters
    ----------
    port : int
        Port to listen on; 0 selects a free one.
    host : str
        Address to listen on; an empty one stands for all addresses, of IPv4 and IPv6. By default,
        only this machine can read the metrics.

    Attributes
    ----------
    port : int
        Port that it listens on.

    Raises
    ------
    RescnetError
        If the port is not free, or prometheus_client is not installed.

    Examples
    --------
    >>> with PrometheusExporter(9464) as exporter:  # doctest: +SKIP
    ...     ResCNetClassifier(spec, store="runs/first", listeners=[exporter]).fit(X, y)
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        try:
            import prometheus_client
        except ImportError:
            raise RescnetError(
                "prometheus_client is not installed. Run pip install 'rescnet-dist[prometheus]'."
            ) from None
        self._metrics = RunMetrics()
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)  # CPU and memory of the driver
        registry.register(self._metrics)
        try:
            serve = prometheus_client.start_http_server
            self._server, self._thread = serve(port, host or _find_any_address(), registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RescnetError(
                f"Metrics cannot be served at port {port} of {host or 'all addresses'} ({reason}). "
                "Use another port, or 0 for any free port, and an address of this machine."
            ) from None
        self.port = int(self._server.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Update the metrics by an event."""
        self._metrics.handle_event(event)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _find_any_address() -> str:
    """Return the address that stands for all of IPv4 and IPv6, or of IPv4 alone."""
    if not socket.has_dualstack_ipv6():
        return "0.0.0.0"
    with socket.socket(socket.AF_INET6) as probe:
        is_ipv6_only = probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return "0.0.0.0" if is_ipv6_only else "::"


class RunMetrics:
    """The metrics of a run, a collector of prometheus_client; events update them.

    Events and scrapes come from different threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._layers = 0
        self._accuracy: Accuracy | None = None
        self._last_progress = time.time()
        self._totals: Counter[str] = Counter()
        self._phase_seconds = dict.fromkeys(PHASES, 0.0)
        self._passes: Counter[str] = Counter()  # by kind
        self._pass_seconds: dict[str, float] = {}  # by kind
        self._retries: Counter[str] = Counter()

    def handle_event(self, event: Event) -> None:
        """Update the metrics by an event."""
        view = _open_view(event) if isinstance(event, RunStarted) else None
        with self._lock:
            self._view = view or self._view
            if self._view is not None:
                self._update(self._view, event)

    def _update(self, view: RunView, event: Event) -> None:
        """Update the metrics by an event of a run."""
        before = view.current
        counted = before.images if before else 0
        view.handle_event(event_to_dict(event))
        if not isinstance(event, PassRetried | RunStopped):
            self._last_progress = time.time()
        match event:
            case RunStarted():
                self._layers = event.layers
                self._accuracy = event.accuracies[-1] if event.accuracies else None
            case ChunkDone() if before:
                self._totals["images"] += max(before.images - counted, 0)  # 0 if it is redone
            case ChunkRebuilt(unexpected=True):
                self._totals["rebuilt"] += 1
            case PassRetried():
                self._retries[event.phase] += 1
            case PassDone():
                self._totals["images"] += max(view.images - counted, 0)  # events may be late
                self._finish_pass(event)

    def _finish_pass(self, event: PassDone) -> None:
        """Add what a pass has measured."""
        observed = event.observed
        self._accuracy = event.accuracy or self._accuracy
        self._layers = event.layer if event.phase == "grow" else self._layers
        self._totals.update(read=observed.read, written=observed.written, redone=observed.redone)
        for phase, seconds in observed.seconds.items():
            self._phase_seconds[phase] = self._phase_seconds.get(phase, 0.0) + seconds
        self._passes[event.phase] += 1
        self._pass_seconds[event.phase] = self._pass_seconds.get(event.phase, 0.0) + event.seconds

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; prometheus_client calls this for each scrape."""
        with self._lock:
            return iter([*self._collect_run(), *self._collect_totals()])

    def _collect_run(self) -> Iterator[Any]:
        """Yield the gauges of the run."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        def gauge(name: str, text: str, value: float | None, **labels: str) -> Any:
            family = GaugeMetricFamily(f"rescnet_{name}", text, labels=list(labels))
            if value is not None:
                family.add_metric(list(labels.values()), value)
            return family

        view = self._view
        state = view.state if view else "waiting"
        states = GaugeMetricFamily("rescnet_run_state", "1 for the current state", labels=["state"])
        for name in STATES:
            states.add_metric([name], name == state)
        yield states
        yield gauge(
            "last_progress_timestamp_seconds",
            "Time of the last progress: a chunk, an iteration of a solver, or a pass",
            self._last_progress,
        )
        if view is None:
            return
        url = mask_secrets(view.url)
        info = {"name": url_name(url), "url": url}
        yield InfoMetricFamily("rescnet_run", "Run store", info)
        yield gauge("layers", "Committed layers", self._layers)
        yield gauge("max_layers", "Largest number of layers that the run may grow", view.max_layers)
        yield gauge("images", "Images of a pass, with augmented copies", view.images)
        current = view.current
        done = current.images / max(view.images, 1) if current else None
        yield gauge("pass_layer", "Layer of the current pass", current.layer if current else None)
        yield gauge("pass_progress_ratio", "Finished share of the images of the pass", done)
        yield gauge(
            "time_left_seconds", "Estimated time until all layers are grown", view.seconds_left()
        )
        yield self._collect_accuracy()
        memory = max(view.memory.values(), default=None)
        yield gauge(
            "worker_memory_max_bytes", "Largest resident memory of a worker in the pass", memory
        )
        yield gauge(
            "worker_memory_planned_bytes", "Planned peak memory of a worker", view.planned_memory
        )
        yield gauge(
            "worker_memory_limit_bytes", "Dask's memory limit of a worker", view.memory_limit
        )

    def _collect_accuracy(self) -> Any:
        """Return the accuracies of the last layer that was evaluated."""
        from prometheus_client.core import GaugeMetricFamily

        text = "Accuracy after the last evaluated layer"
        family = GaugeMetricFamily("rescnet_accuracy_ratio", text, labels=["split"])
        for split in ("train", "validation"):
            value = getattr(self._accuracy, split, None)
            if value is not None:
                family.add_metric([split], value)
        return family

    def _collect_totals(self) -> Iterator[Any]:
        """Yield the counters."""
        from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

        texts = {
            "images": ("images_processed", "Images processed in all passes"),
            "rebuilt": ("rebuilt_chunks", "Chunks rebuilt as their maps were lost or differ"),
            "redone": ("redone_chunks", "Chunks that were processed more than once"),
            "read": ("store_read_bytes", "Uncompressed bytes read from the store"),
            "written": ("store_written_bytes", "Uncompressed bytes written to the store"),
        }
        for key, (name, text) in texts.items():
            yield CounterMetricFamily(f"rescnet_{name}", text, self._totals[key])
        retries = CounterMetricFamily(
            "rescnet_pass_retries", "Passes that continued after a failure", labels=["pass"]
        )
        for phase in {"grow", *self._retries}:
            retries.add_metric([phase], self._retries[phase])
        yield retries
        spent = CounterMetricFamily(
            "rescnet_phase_seconds", "Time of passes by phase", labels=["phase"]
        )
        for phase, seconds in self._phase_seconds.items():
            spent.add_metric([phase], seconds)
        yield spent
        passes = SummaryMetricFamily(
            "rescnet_pass_duration_seconds", "Time of committed passes", labels=["pass"]
        )
        for phase, count in self._passes.items():
            passes.add_metric([phase], count_value=count, sum_value=self._pass_seconds[phase])
        yield passes


def _open_view(event: RunStarted) -> RunView:
    """Return the view of a run that starts, from its store if that can be read.

    It cannot if the URL has credentials, which events mask.
    """
    try:
        view = StoredRun(event.url).view()
    except RescnetError as error:
        logger.warning("The metrics lack the plan and earlier layers of the run: %s", error)
        view = RunView(event.url, "running", event.images, event.max_layers)
    view.state = "running"
    return view
