"""One writer at a time: the claim on a run, which its driver renews while it lives.

A claim is a numbered record `claims/000N.json`. Only a conditional write, which fails where the
record is already there, makes a new one, so of two drivers one gets it; the highest number counts.
A driver whose claim has been taken over finds out at its next look, and stops before it writes.
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
from typing import Any

import psutil

from rescnet_dist.errors import ClaimLostError, StoreError, StoreUnreachableError
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import with_retries

LIFETIME = 60.0  # seconds without renewal after which a claim counts for nothing
RENEW_EVERY = 15.0

FIELDS: dict[str, Any] = {  # of a claim's record, and what they are
    **{"writer": str, "host": str, "pid": int},
    **{"process_started": int | float, "renewed": int | float},
}


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write to the run at a place."""

    location: Location
    number: int
    writer: str

    @classmethod
    def take(cls, location: Location, *, take_over: bool = False, new: bool = False) -> Claim:
        """Claim a place; refused while another driver that lives holds it, unless told to take
        over, and for a new run wherever there ever was a claim. Waits for a store that fails."""
        what = f"claiming {location}"
        number = with_retries(
            lambda: latest_claim(location)[0] if take_over else check_unclaimed(location), what
        )
        if new and number:
            raise StoreError(
                f"store {location.url} already holds another run: choose another URL, or go "
                "on with it (`rescnet resume`, or `--or-resume` with the command that began it)"
            )
        claim = cls(location, number + 1, uuid.uuid4().hex)
        record = _written_by(claim.writer)  # the same at each try, by which one knows its own
        if not with_retries(lambda: claim._record().create_json(record), what):
            raise StoreError(
                f"the run at {location.url} was claimed by another driver just now: choose another "
                "store, or wait until it ends"
            )
        for old in range(number, 0, -1):
            if not with_retries(claim._record(old).exists, what):
                break
            with_retries(claim._record(old).remove, what)
        return claim

    def _record(self, number: int | None = None) -> Location:
        return self.location / f"claims/{self.number if number is None else number:06d}.json"

    def check(self) -> None:
        """Refuse to go on if the claim has been taken over; waits for a store that fails."""
        self._compare(
            *with_retries(
                lambda: latest_claim(self.location), f"reading the claim on {self.location}"
            )
        )

    def _compare(self, number: int, record: dict[str, Any] | None) -> None:
        if number != self.number or not record or record["writer"] != self.writer:
            by = f" by process {record['pid']} on {record['host']}" if record else ""
            raise ClaimLostError(
                f"the run at {self.location.url} has been taken over{by}: this driver stops, and has "
                "written nothing since"
            )

    def renew(self) -> None:
        """Say that the driver lives."""
        self._compare(*latest_claim(self.location))
        self._record().write_json(_written_by(self.writer))

    def release(self) -> None:
        """Give the claim back."""
        if latest_claim(self.location)[0] != self.number:
            return
        try:
            self._record().write_json(_written_by(self.writer) | {"released": True})
        except StoreError:
            self._record().remove()  # which takes no room, where there is none

    @contextlib.contextmanager
    def kept(self) -> Iterator[Claim]:
        """Renew the claim in the background while the body runs, then give it back."""
        ended = threading.Event()

        def renew_until_ended() -> None:
            while not ended.wait(RENEW_EVERY):
                with contextlib.suppress(Exception):  # the driver itself looks before it writes
                    self.renew()

        renewing = threading.Thread(target=renew_until_ended, name="rescnet-claim", daemon=True)
        renewing.start()
        try:
            yield self
        finally:
            ended.set()
            renewing.join()
            with contextlib.suppress(Exception):  # a store that is gone holds no claim either
                self.release()


def check_unclaimed(location: Location) -> int:
    """Refuse a place that another driver that lives writes to; the number of its last claim."""
    number, record = latest_claim(location)
    if record is not None and (problem := _holds(record, number)):
        raise StoreError(f"the run at {location.url} {problem}")
    return number


def latest_claim(location: Location) -> tuple[int, dict[str, Any] | None]:
    """Number and record of the newest claim on a place; 0 and None where there was never one, and
    an empty record where it is damaged."""
    names = [name for name in (location / "claims").names() if name[:-5].isdigit()]
    if not names:
        return 0, None
    try:
        record = (location / "claims" / names[-1]).read_json()
    except StoreUnreachableError:
        raise
    except StoreError:
        record = {}
    whole = record is None or (
        isinstance(record, dict)
        and all(isinstance(record.get(name), kinds) for name, kinds in FIELDS.items())
    )
    return int(names[-1][:-5]), record if whole else {}


def _written_by(writer: str) -> dict[str, Any]:
    process = psutil.Process()
    return {
        "writer": writer,
        "host": socket.gethostname(),
        "pid": process.pid,
        "process_started": process.create_time(),
        "renewed": time.time(),
    }


def _holds(record: dict[str, Any], number: int) -> str | None:
    """Why a claim still holds, or None if it does not: released, expired, or its process gone."""
    if not record:
        return (
            f"has a claim that cannot be read, claims/{number:06d}.json: if no driver writes to "
            "the run, resume it with --take-over (take_over=True)"
        )
    age = time.time() - record["renewed"]
    if record.get("released") or age > LIFETIME:
        return None
    if record["host"] == socket.gethostname() and not _same_process(record):
        return None
    when = datetime.fromtimestamp(record["renewed"], UTC).isoformat(timespec="seconds")
    return (
        f"is being written by process {record['pid']} on {record['host']} (last sign of life "
        f"{when}): wait until it ends; if it is dead, wait {max(1, LIFETIME - age):.0f} s, or "
        "resume it with --take-over (take_over=True)"
    )


def _same_process(record: dict[str, Any]) -> bool:
    """Whether the process that wrote a claim on this machine still runs."""
    try:
        process = psutil.Process(record["pid"])
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(alive and abs(process.create_time() - record["process_started"]) < 1)
    except psutil.Error:
        return False
