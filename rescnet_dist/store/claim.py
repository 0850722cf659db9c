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

from rescnet_dist.errors import StoreError
from rescnet_dist.store.location import Location
from rescnet_dist.store.patience import patiently

LIFETIME = 60.0  # seconds without renewal after which a claim counts for nothing
RENEW_EVERY = 15.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write to the run at a place."""

    place: Location
    number: int
    writer: str

    @classmethod
    def take(cls, place: Location, *, take_over: bool = False) -> Claim:
        """Claim a place; refused while another driver that lives holds it, unless told to."""
        number, record = latest_claim(place)
        if record and not take_over and (problem := _holds(record)):
            raise StoreError(f"the run at {place.url} {problem}")
        claim = cls(place, number + 1, uuid.uuid4().hex)
        if not claim._record().create_json(_written_by(claim.writer)):
            raise StoreError(
                f"the run at {place.url} was claimed by another driver just now: choose another "
                "store, or wait until it ends"
            )
        for old in range(number, 0, -1):
            if not claim._record(old).exists():
                break
            claim._record(old).remove()
        return claim

    def _record(self, number: int | None = None) -> Location:
        return self.place / f"claims/{self.number if number is None else number:06d}.json"

    def check(self) -> None:
        """Refuse to go on if the claim has been taken over."""
        number, record = patiently(lambda: latest_claim(self.place), f"the claim on {self.place}")
        if number != self.number or not record or record["writer"] != self.writer:
            by = f" by process {record['pid']} on {record['host']}" if record else ""
            raise StoreError(
                f"the run at {self.place.url} has been taken over{by}: this driver stops, and has "
                "written nothing since"
            )

    def renew(self) -> None:
        """Say that the driver lives."""
        self.check()
        self._record().write_json(_written_by(self.writer))

    def release(self) -> None:
        """Give the claim back."""
        if latest_claim(self.place)[0] == self.number:
            self._record().write_json(_written_by(self.writer) | {"released": True})

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


def latest_claim(place: Location) -> tuple[int, dict[str, Any] | None]:
    """Number and record of the newest claim on a place; 0 and None where there was never one."""
    names = [name for name in (place / "claims").names() if name[:-5].isdigit()]
    if not names:
        return 0, None
    return int(names[-1][:-5]), (place / "claims" / names[-1]).read_json()


def _written_by(writer: str) -> dict[str, Any]:
    process = psutil.Process()
    return {
        "writer": writer,
        "host": socket.gethostname(),
        "pid": process.pid,
        "process_started": process.create_time(),
        "renewed": time.time(),
    }


def _holds(record: dict[str, Any]) -> str | None:
    """Why a claim still holds, or None if it does not: released, expired, or its process gone."""
    age = time.time() - record["renewed"]
    if record.get("released") or age > LIFETIME:
        return None
    if record["host"] == socket.gethostname() and not _same_process(record):
        return None
    when = datetime.fromtimestamp(record["renewed"], UTC).isoformat(timespec="seconds")
    return (
        f"is being written by process {record['pid']} on {record['host']} (last sign of life "
        f"{when}): wait until it ends; if it is dead, wait {max(1, LIFETIME - age):.0f} s, or take "
        "it over (--take-over, take_over=True)"
    )


def _same_process(record: dict[str, Any]) -> bool:
    """Whether the process that wrote a claim on this machine still runs."""
    try:
        process = psutil.Process(record["pid"])
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(alive and abs(process.create_time() - record["process_started"]) < 1)
    except psutil.Error:
        return False
