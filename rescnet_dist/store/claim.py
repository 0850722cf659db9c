"""Claims: at most one driver writes to a run, and renews its claim while it lives.

A claim is a numbered record `claims/000N.json`. A new record is made by a conditional write only,
which fails if the record exists already, so exactly one of two drivers gets it; the highest number
counts. A driver whose claim has been taken over notices at its next check, and stops before it
writes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import psutil

from rescnet_dist.errors import ClaimLostError, StoreError, StoreReadError
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import limit_retries
from rescnet_dist.store.schema import ClaimRecord, find_type_error

CLAIM_LIFETIME_SECONDS = 60.0  # without renewal, after which a claim has expired
RENEW_INTERVAL_SECONDS = 15.0
MAX_TIME_SECONDS = 2e11  # since 1970; later ones have no date


@dataclass(frozen=True, slots=True)
class Claim:
    """The exclusive right to write to the run at a location."""

    location: Location
    number: int
    writer: str

    @classmethod
    def take(cls, location: Location, *, take_over: bool = False, new: bool = False) -> Claim:
        """Claim a location.

        Raise StoreError if a live driver holds it and `take_over` is False or, for a `new` run, if
        the location was ever claimed.
        """
        number = latest_claim(location)[0] if take_over else check_unclaimed(location)
        if new and number:
            raise StoreError(
                f"Store {location.url} already holds another run. Choose another URL, or resume "
                "the run (`ResCNetClassifier.resume` or `rescnet resume`; or_resume=True or "
                "--or-resume with the call or command that started it)."
            )
        claim = cls(location, number + 1, uuid.uuid4().hex)
        if not claim._record().create_json(_make_record(claim.writer)):
            raise StoreError(
                f"The run at {location.url} was claimed by another driver just now. Choose another "
                "store, or wait until that driver ends."
            )
        records = (claim._record(old) for old in range(number, 0, -1))
        for record in reversed([*takewhile(Location.exists, records)]):
            record.remove()  # the oldest first: a driver looks for its own and the next one
        return claim

    def _record(self, number: int | None = None) -> Location:
        """Return the location of the record of this claim, or of the one with a given number."""
        return self.location / f"claims/{self.number if number is None else number:06d}.json"

    def check(self) -> None:
        """Raise ClaimLostError if the claim was taken over.

        The next claim has the next number, and removes this one after that. Looking for both takes
        two requests; listing all claims would be slower.
        """
        number, record = self.number, None
        if _read_record(self._record(self.number + 1)) is None:
            record = _read_record(self._record())
        if not record:
            number, record = latest_claim(self.location)
        self._compare(number, record)

    def is_superseded(self) -> bool:
        """Return whether the latest claim is of another driver, whatever became of this one."""
        record = latest_claim(self.location)[1]
        return record is not None and record.get("writer") != self.writer

    def _compare(self, number: int, record: dict[str, Any] | None) -> None:
        """Raise ClaimLostError if the latest claim is not this one."""
        if number != self.number or not record or record["writer"] != self.writer:
            by = f" by process {record['pid']} on {record['host']}" if record else ""
            raise ClaimLostError(
                f"The run at {self.location.url} has been taken over{by}. This driver stops, and "
                "has written nothing since."
            )

    @limit_retries(0)
    def renew(self) -> None:
        """Update the time at which this driver was last known to be alive.

        This is a single attempt, as `hold` makes the next one soon. A record that was removed just
        before it was written, as of a driver that was suspended, is removed again: `check` must
        not find it.
        """
        self._compare(*latest_claim(self.location))
        self._record().write_json(_make_record(self.writer))
        if latest_claim(self.location)[0] != self.number:
            self._record().remove()

    @limit_retries(0)
    def release(self) -> None:
        """Release the claim, unless another driver has taken it over.

        This is a single attempt, as a claim expires without it.
        """
        if latest_claim(self.location)[0] != self.number:
            return
        try:
            self._record().write_json(_make_record(self.writer) | {"released": True})
        except StoreError:
            self._record().remove()  # Works on a full disk, where writing does not.

    @contextlib.contextmanager
    def hold(self) -> Iterator[Claim]:
        """Renew the claim in the background while the body runs, then release it."""
        ended = threading.Event()

        def renew_until_ended() -> None:
            while not ended.wait(RENEW_INTERVAL_SECONDS):
                with contextlib.suppress(Exception):  # The driver checks before it writes.
                    self.renew()

        thread = threading.Thread(target=renew_until_ended, name="rescnet-claim", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(Exception):  # A store that is gone holds no claim either.
                self.release()


def check_unclaimed(location: Location) -> int:
    """Return the number of the latest claim; raise StoreError if a live driver holds it."""
    number, problem = _find_holder(location)
    if problem:
        raise StoreError(f"The run at {location.url} {problem}")
    return number


def is_claimed(location: Location) -> bool:
    """Return whether a live driver holds the latest claim, or one that cannot be read."""
    return _find_holder(location)[1] is not None


def is_being_written(location: Location) -> bool:
    """Return whether a live driver holds the latest claim, which can be read."""
    number, record = latest_claim(location)
    return bool(record and _describe_holder(record, number))


def _find_holder(location: Location) -> tuple[int, str | None]:
    """Return the number of the latest claim and why it still holds, as `_describe_holder`."""
    number, record = latest_claim(location)
    return number, None if record is None else _describe_holder(record, number)


def latest_claim(location: Location) -> tuple[int, dict[str, Any] | None]:
    """Return number and record of the latest claim on a location.

    They are 0 and None if it was never claimed; the record is empty if it is damaged.
    """
    names = [name for name in (location / "claims").names() if name[:-5].isdecimal()]
    if not names:
        return 0, None
    return int(names[-1][:-5]), _read_record(location / "claims" / names[-1])


def _read_record(location: Location) -> dict[str, Any] | None:
    """Read the record of a claim; None if there is none, empty if it is damaged."""
    try:
        record = location.read_json()
    except StoreReadError:
        return {}
    return {} if record is not None and _is_damaged(record) else record


def _is_damaged(record: Any) -> bool:
    """Return whether the record of a claim has a value that no driver writes."""
    if find_type_error(record, ClaimRecord):
        return True
    return record["pid"] < 0 or not 0 <= record["renewed"] <= MAX_TIME_SECONDS


def _make_record(writer: str) -> dict[str, Any]:
    """Return the record of a claim of this process, renewed now."""
    process = psutil.Process()
    return {
        "writer": writer,
        "host": socket.gethostname(),
        "pid": process.pid,
        "process_started": process.create_time(),
        "started_after_boot": _seconds_after_boot(process),
        "renewed": time.time(),
    }


def _seconds_after_boot(process: psutil.Process) -> float:
    """Return when a process started; unlike its time of creation, no step of the clock changes it.

    The boot time is read first: earlier releases of psutil compute the other one from it.
    """
    booted = psutil.boot_time()
    return float(process.create_time() - booted)


def _describe_holder(record: dict[str, Any], number: int) -> str | None:
    """Return why a claim still holds, with a remedy.

    It is None if the claim is released or expired, or if its process has ended.
    """
    if not record:
        return (
            f"has a claim that cannot be read, claims/{number:06d}.json. If no driver writes to "
            "the run, resume it with --take-over (take_over=True)."
        )
    age = time.time() - record["renewed"]
    if record.get("released") or age > CLAIM_LIFETIME_SECONDS:
        return None
    if record["host"] == socket.gethostname() and not _is_running(record):
        return None
    renewed = datetime.fromtimestamp(record["renewed"], UTC).isoformat(timespec="seconds")
    remaining = max(1, CLAIM_LIFETIME_SECONDS - age)
    return (
        f"is being written by process {record['pid']} on {record['host']} (last renewed "
        f"{renewed}). Wait until it ends; if it is dead, wait {remaining:.0f} s, or resume the run "
        "with --take-over (take_over=True)."
    )


def _is_running(record: dict[str, Any]) -> bool:
    """Return whether the process that wrote a claim on this machine is still running."""
    try:
        process = psutil.Process(record["pid"])
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        # The start time distinguishes it from a later process with the same pid.
        if (started := record.get("started_after_boot")) is not None:
            return bool(is_alive and abs(_seconds_after_boot(process) - started) < 1)
        return bool(is_alive and abs(process.create_time() - record["process_started"]) < 1)
    except psutil.Error:
        return False
