"""Hold an adaptive cluster at the number of workers that a run needs.

Autoscalers (of the Dask operator, of a Dask gateway, and `cluster.adapt()`) ask the scheduler how
many workers it wants. Dask derives the number from the tasks of the moment. A pass ends in a few
merges and one solve, so a run would lose workers at the end of each pass, and get new ones, which
have to load their kernels, in the next. While a client holds workers, the scheduler's answer is the
number that it holds. No permission of Kubernetes is needed, as only the scheduler is asked.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from rescnet_dist._compat import find_scheduler_plugin, replace_adaptive_target
from rescnet_dist.errors import SpecError

# After a driver has died, for which its workers are kept for the next one.
LOST_HOLD_SECONDS = 300.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Hold:
    """A number of workers that a client holds.

    Attributes
    ----------
    client : str
        Identifier of the client.
    workers : int
        Number of workers.
    may_grow : bool
        Whether Dask may add workers to them.
    expires : float or None, default None
        Time at which the hold ends, as its client is gone; None as long as the client is there.
    """

    client: str
    workers: int
    may_grow: bool
    expires: float | None = None


class HoldsPlugin(SchedulerPlugin):
    """Scheduler plugin that knows how many workers are held, and by which clients."""

    name = "rescnet-holds"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.holds: dict[str, Hold] = {}
        self._clock, self._largest = clock, 0

    def held(self, client: str) -> int:
        """Return the number of workers that a client holds, and that Dask may not change."""
        fixed = (h for h in self.holds.values() if h.client == client and not h.may_grow)
        return max((hold.workers for hold in fixed), default=0)

    def target(self, own: Callable[[], int]) -> int:
        """Return the number of workers to have; `own` returns Dask's number.

        It is Dask's own as long as nobody holds workers. Numbers of several clients are added. What
        is left of clients that are gone is not: it is for the next driver of the same run, and
        Dask may add workers to it. If Dask may add workers to those of a client that is there, the
        number never falls until they are released.
        """
        now = self._clock()
        self.holds = {
            key: hold
            for key, hold in self.holds.items()
            if hold.expires is None or now < hold.expires
        }
        if not self.holds:
            self._largest = 0
            return own()
        present: dict[str, int] = {}
        lost, fixed = 0, set()
        for hold in self.holds.values():
            if hold.expires is not None:
                lost = max(lost, hold.workers)
                continue
            if not hold.may_grow:
                fixed.add(hold.client)
            present[hold.client] = max(present.get(hold.client, 0), hold.workers)
        wanted = max(sum(present.values()), lost)
        if not present:
            self._largest = 0
            return max(wanted, own())
        if present.keys() <= fixed:
            self._largest = 0
            return wanted
        self._largest = max(self._largest, wanted, own())
        return self._largest

    def add_client(self, scheduler: Any, client: str) -> None:
        """Keep what a client holds for as long as it wants, once it has connected again."""
        for hold in self.holds.values():
            if hold.client == client:
                hold.expires = None

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Keep what a client holds for a while after it is gone without releasing it."""
        for hold in self.holds.values():
            if hold.client == client and hold.expires is None:
                hold.expires = self._clock() + LOST_HOLD_SECONDS


@contextmanager
def hold_workers(client: Client, workers: int) -> Iterator[None]:
    """Hold an adaptive cluster at a number of workers during the body.

    The autoscaler of the cluster starts them at once, within its own limits, and removes none until
    the body ends. Runs that start in the body are planned for this number of workers, even if not
    all have joined by then. A cluster without an autoscaler keeps the workers that it has.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    workers : int
        Number of workers, at least 1.

    Yields
    ------
    None

    Raises
    ------
    SpecError
        If the number of workers is less than 1.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> cluster = LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0")
    >>> _ = cluster.adapt(minimum=0, maximum=4, interval="100ms")
    >>> client = Client(cluster)
    >>> with hold_workers(client, 2):
    ...     client.wait_for_workers(2, timeout=30)
    >>> client.close()
    >>> cluster.close()
    """
    if workers < 1:
        raise SpecError(f"workers={workers} cannot be held. Give at least 1.")
    with _hold(client, workers, may_grow=False):
        yield


@contextmanager
def keep_workers(client: Client, workers: int) -> Iterator[None]:
    """Keep an adaptive cluster from removing workers during the body, for a run.

    `workers` are those that the run was planned for. More may be added, unless the client holds a
    number.
    """
    with _hold(client, workers, may_grow=True):
        yield


@contextmanager
def _hold(client: Client, workers: int, *, may_grow: bool) -> Iterator[None]:
    """Hold workers during the body; a scheduler that cannot is left as it is."""
    key, is_held = uuid.uuid4().hex, True
    try:
        client.run_on_scheduler(_add_hold, key, client.id, workers, may_grow)
    except Exception as error:  # for example, the scheduler lacks this package
        logger.warning("An autoscaler may remove workers during runs: %s", error)
        is_held = False
    try:
        yield
    finally:
        # Without a scheduler, the hold is gone too.
        if is_held and client.status == "running":
            with suppress(Exception):
                client.run_on_scheduler(_remove_hold, key)


def held_workers(client: Client) -> int:
    """Return the number of workers that a client holds by `hold_workers`; 0 without."""
    try:
        return int(client.run_on_scheduler(_count_held, client.id))
    except (ImportError, AttributeError):  # the scheduler lacks this package
        return 0


def _add_hold(key: str, client: str, workers: int, may_grow: bool, dask_scheduler: Any) -> None:
    """Add a hold on a scheduler."""
    install(dask_scheduler).holds[key] = Hold(client, workers, may_grow)


def _remove_hold(key: str, dask_scheduler: Any) -> None:
    """Remove a hold from a scheduler."""
    install(dask_scheduler).holds.pop(key, None)


def _count_held(client: str, dask_scheduler: Any) -> int:
    """Return the number of workers that a client holds on a scheduler."""
    plugin = find_scheduler_plugin(dask_scheduler, HoldsPlugin.name)
    return plugin.held(client) if plugin else 0


def install(scheduler: Any) -> HoldsPlugin:
    """Return the plugin of a scheduler; install it if it is missing."""
    plugin = find_scheduler_plugin(scheduler, HoldsPlugin.name)
    if plugin is None:
        plugin = HoldsPlugin()
        scheduler.add_plugin(plugin)
        replace_adaptive_target(scheduler, plugin.target)
    assert isinstance(plugin, HoldsPlugin)
    return plugin
