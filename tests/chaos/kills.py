"""A thousand kills: runs are disturbed at random moments, resumed, and end in the same bits.

    python tests/chaos/kills.py --kills 1000 --seed 26 --journal tests/chaos/kills.jsonl

Everything about a round is drawn from its seed, `SEED-ROUND`: the kind of run, and the faults with
their moments. A round is one run: the same command is repeated until it succeeds. The journal has
one line for each round; the command continues it. `tests/chaos/kills.jsonl` is the journal that the
book shows. `--replay 26-11 26-23` repeats rounds without a journal; their faults are the same, but
hit what a run does at that moment this time.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # tests/ is on the path of pytest only
    sys.path.append(str(Path(__file__).parents[1]))

import fsspec
from arena import WORKERS, Arena, open_arena
from contents import find_differences, read_contents, write_data
from fork_server import Forked
from journal import Journal, write_table

from rescnet_dist import RescnetError

IMAGES = 48
NETWORK = (
    *("--preset", "digits", "--filters", "4", "--first-filter-size", "3", "--block", "5"),
    *("--stride", "3", "--max-layers", "3", "--no-stop-at-zero-error", "--chunk-images", "10"),
    *("--accumulators", "2", "--split-every", "2", "--solve-threads", "1", "--validation", "0.2"),
)
VARIANTS = {  # of a run
    "maps in the store": ("--maps", "store"),
    "maps in memory": ("--maps", "memory", "--checkpoint-every", "2"),
    "tiles": ("--maps", "store", "--tile-features", "48"),
    "conjugate gradients": (
        *("--maps", "store", "--solver", "cg", "--cg-iterations", "4", "--cg-tolerance", "0"),
    ),
}
# How often each kind of fault is drawn, relative to the others.
KINDS = {
    "worker": 4,  # SIGKILL
    "workers": 1,  # all of them
    "driver": 4,
    "driver terminated": 1,  # SIGTERM
    "scheduler": 3,
    "store": 3,  # the S3 server
    "cut": 3,  # the network of a worker
    "worker frozen": 2,  # SIGSTOP, later SIGCONT
    "scheduler frozen": 1,
    "driver frozen": 1,
    "driver replaced": 2,  # it is frozen, another takes the run over, then it wakes up
    "clock": 3,  # a step of the clock of a process
}
KIND_NAMES = {  # in tables, where they differ
    "worker": "worker killed",
    "workers": "all workers killed",
    "driver": "driver killed",
    "scheduler": "scheduler killed",
    "store": "S3 server killed",
    "cut": "worker cut off",
    "clock": "clock stepped",
}
CLOCK_STEPS_SECONDS = (-86400, -3600, -61, -2, 2, 61, 3600, 86400)
S3_CLOCK_SECONDS = 900  # by which the time of a request may differ from that of the server
MAX_FAULTS = 12  # of one round
WAITS = 0.3, 1.0  # for the next fault, at most, as fractions of a run without faults
FAULT_SECONDS = (0.1, 14.0)  # for which a process is frozen or cut off
STORE_FAULT_SECONDS = 2.0  # until the S3 server is started again, at most
DEADLINE_SECONDS = 600.0  # for a driver after the last fault
POLL_SECONDS = 0.02
SAME_BITS = "same bits"  # as a run without faults: the outcome of a round that went well
EXIT_CODES = (0, 75)  # besides those of signals, see `is_expected`
# In errors of a driver that is started while another one is frozen: it has the run, or has not
# written all data yet.
REFUSALS = ("is being written by process", "never completely written", "no Zarr group", "no run")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its kind, when it comes, how long it lasts, and a number for what is hit.

    wait is the time since the previous fault, as a fraction of the time of a run without faults.
    """

    kind: str
    wait: float
    seconds: float
    chance: float


@dataclass(frozen=True, slots=True)
class Round:
    """One run with its faults, drawn from a seed."""

    seed: str
    variant: str
    on_s3: bool
    faults: tuple[Fault, ...]

    @classmethod
    def draw(cls, seed: str, missing: dict[str, str]) -> Round:
        """Draw a round without the kinds of faults that are not possible."""
        rng = random.Random(seed)
        on_s3 = rng.random() < 0.4 and "store" not in missing
        kinds = [kind for kind in KINDS if kind not in missing and (kind != "store" or on_s3)]
        chosen = rng.choices(kinds, [KINDS[kind] for kind in kinds], k=rng.randint(3, MAX_FAULTS))
        shortest, longest = map(math.log, FAULT_SECONDS)
        faults = (
            Fault(
                kind,
                wait=rng.random() * rng.choice(WAITS),
                seconds=math.exp(rng.uniform(shortest, longest)),
                chance=rng.random(),
            )
            for kind in chosen
        )
        return cls(seed, rng.choice(list(VARIANTS)), on_s3, tuple(faults))


class Failure(Exception):
    """A round has failed: the run is stuck, has ended in another way, or has other bits."""


class Harness:
    """Runs rounds in an arena and writes what they did to a journal."""

    def __init__(self, arena: Arena, folder: Path) -> None:
        self.arena, self.folder = arena, folder
        self.expected: dict[str, Any] = {}  # contents of runs without faults, by variant
        self.seconds: dict[str, float] = {}  # of a run without faults
        self.objects: dict[str, list[str]] = {}  # in the store of a run without faults
        self.data = {False: str(folder / "data.zarr"), True: "s3://runs/data.zarr"}
        write_data(self.data[False], IMAGES)
        if arena.store:
            write_data(self.data[True], IMAGES)

    def command(self, store: str, variant: str, *, on_s3: bool) -> list[str]:
        """Return the command of a run; it starts the run or resumes it."""
        places = ["--store", store, "--scheduler", self.arena.address, "--wait", "120s"]
        return ["train", self.data[on_s3], *places, "--or-resume", *NETWORK, *VARIANTS[variant]]

    def learn(self, variant: str) -> None:
        """Run a variant without faults, if it has not been run yet.

        The first one is run twice, as the processes have just started.
        """
        times = 1 if self.expected else 2
        for number in range(times if variant not in self.expected else 0):
            store = str(self.folder / f"undisturbed-{variant}-{number}")
            started = time.monotonic()
            self.finish(Execution(self, Round(store, variant, False, ()), store))
            self.seconds[variant] = time.monotonic() - started
            self.expected[variant] = read_contents(store)
            self.objects[variant] = list_objects(store)

    def run_round(self, seed: str) -> dict[str, Any]:
        """Run the round of a seed; return its record, with its faults and how it ended."""
        round_ = Round.draw(seed, self.arena.missing)
        self.learn(round_.variant)
        if round_.on_s3:  # which refuses requests of processes with a wrong clock
            self.arena.reset_clocks()
        place = "s3://runs" if round_.on_s3 else str(self.folder)
        execution = Execution(self, round_, f"{place}/{round_.seed}")
        outcome = SAME_BITS
        started = time.monotonic()
        try:
            for fault in round_.faults:
                if not execution.wait(fault.wait * self.seconds[round_.variant]):
                    break
                execution.inject(fault)
            self.finish(execution)
            self.compare(execution)
        except Failure as failure:
            outcome = str(failure)
        if outcome == SAME_BITS:
            remove(execution.store)
            for log in execution.logs.values():
                log.unlink()
        return {
            "seed": round_.seed,
            "day": datetime.now(UTC).date().isoformat(),
            "variant": round_.variant,
            "store": "s3" if round_.on_s3 else "folder",
            "seconds": round(time.monotonic() - started, 1),
            "exit_codes": execution.codes,
            "faults": execution.faults,
            "outcome": outcome,
        }

    def finish(self, execution: Execution) -> None:
        """Wait until a run is done, without further faults."""
        if execution.wait(DEADLINE_SECONDS):
            execution.dump_stacks()
            raise Failure(f"stuck for {DEADLINE_SECONDS:.0f} s")
        for process in execution.processes:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while process.poll() is None:  # one that was frozen ends after it wakes up
                if time.monotonic() > deadline:
                    execution.dump_stacks()
                    raise Failure(f"driver {process.pid} is stuck")
                self.arena.tend(execution.rng)
                time.sleep(POLL_SECONDS)
            execution.check_code(process)
            if process.has_children():
                raise Failure(f"driver {process.pid} has left processes behind")

    def compare(self, execution: Execution) -> None:
        """Compare a finished run with that without faults."""
        variant = execution.round.variant
        if self.arena.store:  # it may have been killed after the last request of the run
            self.arena.store.wait_for_restart()
        try:
            contents = read_contents(execution.store)
        except RescnetError as error:
            raise Failure(f"the run cannot be read: {error}") from None
        different = find_differences(contents, self.expected[variant])
        if different:
            raise Failure(f"other bits in {different}")
        objects = list_objects(execution.store)
        if left := sorted(set(objects) ^ set(self.objects[variant])):
            raise Failure(f"other objects: {left[:5]}")


class Execution:
    """The run of a round: its drivers, and the faults that were made."""

    def __init__(self, harness: Harness, round_: Round, store: str) -> None:
        self.harness, self.arena, self.round, self.store = harness, harness.arena, round_, store
        self.rng = random.Random(f"{round_.seed} repairs")
        self.name, self.logs = Path(store).name, dict[int, Path]()  # logs of drivers by process
        self.command = harness.command(store, round_.variant, on_s3=round_.on_s3)
        self.faults: list[tuple[str, float, str]] = []  # kind, moment, and what was hit
        self.codes: list[int] = []  # of the drivers
        self.processes: list[Forked] = []  # drivers that may still run
        self.started, self.is_done = time.monotonic(), False
        self.has_replaced = False  # whether a driver was to replace another
        self.driver = self.start_driver(self.command)

    def start_driver(self, arguments: list[str]) -> Forked:
        """Start a driver, which is the current one from now on."""
        log = self.harness.folder / f"{self.name}-{len(self.logs)}.log"
        process = self.arena.start_driver(arguments, log)
        self.logs[process.pid] = log
        self.processes.append(process)
        return process

    def wait(self, seconds: float) -> bool:
        """Let the run continue for some seconds; return False if it is done before.

        A driver that has ended otherwise is followed by another at once, or by the one that it was
        to replace.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.arena.tend(self.rng)
            if self.is_done:
                return False
            if self.driver.poll() is not None:
                self.processes.remove(self.driver)
                self.check_code(self.driver)
                if self.is_refused(self.driver) and self.processes:
                    self.driver = self.processes[-1]
                elif self.driver.poll() == 0:
                    self.is_done = True
                else:
                    self.driver = self.start_driver(self.command)
            time.sleep(POLL_SECONDS)
        return True

    def is_refused(self, driver: Forked) -> bool:
        """Return whether a driver was refused because of another one that has the run."""
        lines = self.logs[driver.pid].read_text().splitlines()
        has_error = bool(lines) and any(words in lines[-1] for words in REFUSALS)
        return driver.poll() == 2 and self.has_replaced and has_error

    def check_code(self, driver: Forked) -> None:
        """Raise Failure if a driver has ended by anything else than a fault or success."""
        code = driver.poll()
        assert code is not None
        self.codes.append(code)
        if not (is_expected(code, driver) or self.is_refused(driver)):
            raise Failure(f"exit code {code} of driver {driver.pid}")
        if driver.has_children():
            raise Failure(f"driver {driver.pid} has left processes behind")

    def inject(self, fault: Fault) -> None:
        """Make a fault now, and record it."""
        target = inject(self, fault)
        moment = round(time.monotonic() - self.started, 2)
        self.faults.append((fault.kind, moment, target))

    def dump_stacks(self) -> None:
        """Have all processes write the stacks of their threads to their logs."""
        for process in (*self.processes, *self.arena.workers, self.arena.scheduler):
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGUSR1)
        time.sleep(2)


def is_expected(code: int, driver: Forked) -> bool:
    """Return whether a driver may end with this exit code after the signals that it was sent.

    A signal ends it only if the harness has sent it. SIGTERM does so only in the moments in which
    a command has not begun or has ended, and does not catch it.
    """
    if code == -signal.SIGKILL:
        return signal.SIGKILL in driver.sent
    if code == -signal.SIGTERM:
        return driver.sent.get(signal.SIGTERM) is False
    return code in EXIT_CODES


def inject(execution: Execution, fault: Fault) -> str:
    """Make a fault; return what was hit, and for how long."""
    arena, driver = execution.arena, execution.driver
    number = int(fault.chance * 1000) % WORKERS
    worker = arena.workers[number]
    lasting = f"for {fault.seconds:.2f} s"
    match fault.kind:
        case "worker":
            worker.kill()
            return f"worker {number}"
        case "workers":
            for worker in arena.workers:
                worker.kill()
            return "all workers"
        case "driver":
            driver.kill()
            return "driver"
        case "driver terminated":
            driver.send_signal(signal.SIGTERM)
            return "driver"
        case "scheduler":
            arena.scheduler.kill()
            return "scheduler"
        case "store":
            assert arena.store
            return arena.store.kill(fault.chance * STORE_FAULT_SECONDS)
        case "cut":
            assert arena.network
            network = arena.network
            network.cut(number)
            arena.repair_later(fault.seconds, lambda: network.heal(number))
            return f"worker {number} {lasting}"
        case "worker frozen":
            arena.freeze(worker, fault.seconds)
            return f"worker {number} {lasting}"
        case "scheduler frozen":
            arena.freeze(arena.scheduler, fault.seconds)
            return f"scheduler {lasting}"
        case "driver frozen":
            arena.freeze(driver, fault.seconds)
            return f"driver {lasting}"
        case "driver replaced":
            arena.freeze(driver, fault.seconds)
            take_over = ["resume", execution.store, "--take-over", "--wait", "120s"]
            take_over += ["--scheduler", arena.address]
            execution.has_replaced = True
            execution.driver = execution.start_driver(take_over)
            return f"driver, frozen {lasting}"
        case "clock":
            targets = {"driver": driver, "scheduler": arena.scheduler, f"worker {number}": worker}
            name = list(targets)[int(fault.chance * 997) % len(targets)]
            possible = CLOCK_STEPS_SECONDS
            if execution.round.on_s3:
                possible = tuple(step for step in possible if abs(step) < S3_CLOCK_SECONDS)
            step = possible[int(fault.chance * 991) % len(possible)]
            arena.step_clock(targets[name], step)
            return f"{name} by {step} s"
    raise AssertionError(fault.kind)


def list_objects(store: str) -> list[str]:
    """List the objects of a run by their path, without claims, whose number is that of drivers."""
    filesystem, root = fsspec.core.url_to_fs(store)
    filesystem.invalidate_cache()
    paths = (path.removeprefix(root).lstrip("/") for path in filesystem.find(root))
    return sorted(path for path in paths if not path.startswith("claims/"))


def remove(store: str) -> None:
    """Remove a run."""
    filesystem, root = fsspec.core.url_to_fs(store)
    filesystem.rm(root, recursive=True)


def collect(journal: Journal, kills: int, seed: str, folder: Path, minutes: float) -> bool:
    """Run rounds until the journal has this many kills; return whether all went well."""
    deadline = time.monotonic() + 60 * minutes
    rounds = next_round(journal.records, seed)
    with open_harness(folder) as harness:
        while count_faults(journal.records) < kills and time.monotonic() < deadline:
            record = harness.run_round(f"{seed}-{rounds}")
            journal.append(record)
            rounds += 1
            print(f"{describe(record)}; {count_faults(journal.records)} in all", flush=True)
            if record["outcome"] != SAME_BITS:
                return False
    return True


def replay(seeds: list[str], folder: Path) -> bool:
    """Repeat rounds, which a journal does not have to have; return whether all went well."""
    good = True
    with open_harness(folder) as harness:
        for seed in seeds:
            record = harness.run_round(seed)
            print(describe(record), flush=True)
            good &= record["outcome"] == SAME_BITS
    return good


@contextmanager
def open_harness(folder: Path) -> Iterator[Harness]:
    """Start what rounds need, and say which faults are not possible on this machine."""
    with open_arena(folder) as arena:
        for kind, reason in arena.missing.items():
            print(f"no faults of the kind {kind!r}: {reason}", flush=True)
        if arena.store:
            fsspec.config.conf["s3"] = s3_options(arena.store.environment)
        yield Harness(arena, folder)


def describe(record: dict[str, Any]) -> str:
    """Return a line about a round."""
    faults, seconds = len(record["faults"]), record["seconds"]
    return f"{record['seed']}: {faults} faults in {seconds} s, {record['outcome']}"


def count_faults(records: list[dict[str, Any]]) -> int:
    """Return the number of faults in runs that ended with the same bits."""
    return sum(len(record["faults"]) for record in records if record["outcome"] == SAME_BITS)


def next_round(records: list[dict[str, Any]], seed: str) -> int:
    """Return the number of the first round of a seed that is not in a journal."""
    seeds = (record["seed"].rsplit("-", 1) for record in records)
    return 1 + max((int(number) for other, number in seeds if other == seed), default=0)


def s3_options(environment: dict[str, str]) -> dict[str, Any]:
    """Return what fsspec needs to reach the S3 server from this process."""
    return {
        "key": environment["AWS_ACCESS_KEY_ID"],
        "secret": environment["AWS_SECRET_ACCESS_KEY"],
        "endpoint_url": environment["AWS_ENDPOINT_URL"],
    }


def summarize(records: list[dict[str, Any]]) -> str:
    """Return a table of the faults by kind, and how many were in runs that ended well."""
    counts, same = Counter[str](), Counter[str]()
    for record in records:
        kinds = [kind for kind, _, _ in record["faults"]]
        counts.update(kinds)
        same.update(kinds if record["outcome"] == SAME_BITS else ())
    lines = ["| fault | count | in runs that ended with the same bits |", "| --- | --- | --- |"]
    lines += [f"| {KIND_NAMES.get(kind, kind)} | {counts[kind]} | {same[kind]} |" for kind in KINDS]
    lines += [f"| all | {counts.total():,} | {same.total():,} |"]
    return "\n".join(lines)


def main() -> None:
    """Collect kills in a journal, then print a summary of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="in the journal at the end")
    parser.add_argument("--journal", type=Path, help="file of JSON lines")
    parser.add_argument("--replay", nargs="+", help="seeds of rounds to repeat, without a journal")
    parser.add_argument("--seed", default="1", help="of all that is drawn")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="to stop after, at a round's end"
    )
    parser.add_argument("--page", type=Path, help="page of the book, to write the table to")
    options = parser.parse_args()
    if bool(options.journal) == bool(options.replay):
        parser.error("pass either --journal or --replay")
    folder = Path(tempfile.mkdtemp(prefix="rescnet-kills-"))
    if options.replay:
        good = replay(options.replay, folder)
    else:
        journal = Journal(options.journal)
        good = collect(journal, options.kills, options.seed, folder, options.minutes)
        print(table := summarize(journal.records))
        if options.page:
            write_table("kills", table, options.page)
    if good:
        shutil.rmtree(folder)
    else:
        print(f"logs and stores are in {folder}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
