"""Rotation of certificates: two CAs at once, then the new one alone."""

from __future__ import annotations

import asyncio
import operator

import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm import connect
from distributed.security import Security
from images import certificates  # type: ignore[import-not-found]

LOCAL = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
REFUSED_SECONDS = 1  # Dask tries again for so long
MAX_SECONDS = 60


@pytest.fixture(scope="module")
def cas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folder of each CA, made by the commands of the guide, and the bundle of both."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("old", "new")}
    names = ("rescnet-ca-1", "rescnet-ca-2")  # OpenSSL finds a CA by its name
    made = map(certificates, folders.values(), names)
    bundle = "".join(files["ca.crt"] for files in made)
    both = tmp_path_factory.mktemp("both") / "ca.crt"
    both.write_text(bundle)
    return {name: str(folder) for name, folder in folders.items()} | {"both": str(both.parent)}


def secure(cas: dict[str, str], own: str, trusted: str) -> Security:
    """Return the certificate of one CA, and trust in one or both, as pods have them."""
    files = {
        f"tls_{role}_{kind}": f"{cas[own]}/tls.{suffix}"
        for role in ("client", "scheduler", "worker")
        for kind, suffix in (("cert", "crt"), ("key", "key"))
    }
    return Security(require_encryption=True, tls_ca_file=f"{cas[trusted]}/ca.crt", **files)


def open_client(scheduler: Scheduler, security: Security) -> Client:
    """Return a client that is not connected yet."""
    options = {"asynchronous": True, "set_as_default": False}
    return Client(scheduler.address, security=security, timeout=MAX_SECONDS, **options)


async def add_on_both(client: Client, workers: list[Worker]) -> int:
    """Move a result from one worker to the other and back."""
    first, second = (worker.address for worker in workers)
    one = client.submit(operator.add, 1, 1, workers=first, key="one")
    two = client.submit(operator.add, one, 1, workers=second, key="two")
    return int(await client.submit(operator.add, two, one, workers=first, key="three"))


@pytest.mark.parametrize("scheduler", ["old", "new"])
def test_certificates_of_both_cas_work_together(cas: dict[str, str], scheduler: str) -> None:
    """While all parts trust both CAs, each may have its old or its new certificate."""

    async def run() -> int:
        old, new = (secure(cas, own, "both") for own in ("old", "new"))
        security = {"old": old, "new": new}[scheduler]
        async with (
            Scheduler(protocol="tls", port=0, security=security, **LOCAL) as running,
            Worker(running.address, security=old, **LOCAL) as first,
            Worker(running.address, security=new, **LOCAL) as second,
            open_client(running, new) as client,
        ):
            return await add_on_both(client, [first, second])

    assert asyncio.run(asyncio.wait_for(run(), MAX_SECONDS)) == 5


def test_old_certificates_are_refused_in_the_end(cas: dict[str, str]) -> None:
    """By a scheduler that trusts the new CA only; those that trust both can still use it."""

    async def run() -> None:
        new, last = secure(cas, "new", "new"), secure(cas, "new", "both")
        old = secure(cas, "old", "both")
        async with (
            Scheduler(protocol="tls", port=0, security=new, **LOCAL) as running,
            Worker(running.address, security=last, **LOCAL) as first,
            Worker(running.address, security=new, **LOCAL) as second,
            open_client(running, last) as client,
        ):
            assert await add_on_both(client, [first, second]) == 5
            for role in ("client", "worker"):
                arguments = old.get_connection_args(role)
                with pytest.raises(OSError, match=r"unknown ca|reset|Timed out"):
                    await connect(running.address, timeout=REFUSED_SECONDS, **arguments)
                arguments = last.get_connection_args(role)
                comm = await connect(running.address, timeout=MAX_SECONDS, **arguments)
                await comm.close()

    asyncio.run(asyncio.wait_for(run(), MAX_SECONDS))
