"""A hundred thousand hostile inputs: each is used or rejected, and none crashes or hangs.

    python tests/hostile/hostile.py --inputs 100000 --seed 28 --journal tests/hostile/hostile.jsonl

Inputs are made in batches, each from a seed of its own in a process of its own. The journal has one
line for each batch; the command continues it. `tests/hostile/hostile.jsonl` is the journal that the
book shows.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # tests/ is on the path of pytest only
    sys.path.append(str(Path(__file__).parents[1]))

from journal import Journal, write_table
from targets import TARGETS, is_rejected

# How many inputs each kind of target gets, relative to the others.
SHARES = {"source": 2, "store": 6, "spec": 20, "toml": 15, "events": 15, "requests": 10}
BATCH_INPUTS = 200  # by default; larger batches spend less time on starting their processes
MAX_INPUT_SECONDS = 60.0
MAX_MORE_BYTES = 2**30  # that the memory of a process may grow by during a batch


def run_batch(name: str, seed: str, inputs: int, folder: Path) -> dict[str, int | str]:
    """Give a target hostile inputs; return how many were used and rejected, or the first fault."""
    warnings.simplefilter("ignore")
    (folder / "work").mkdir()
    attack, found = TARGETS[name](folder / "work"), Counter[str]()
    before = get_peak_bytes()
    for number in range(inputs):
        (folder / "current").write_text(f"{name}: input {number} of seed {seed}")
        faulthandler.dump_traceback_later(MAX_INPUT_SECONDS, exit=True)
        try:
            rejected = is_rejected(attack, random.Random(f"{seed} {number}"))
            found["rejected" if rejected else "used"] += 1
        except BaseException as error:
            faulthandler.cancel_dump_traceback_later()
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")
            return {"fault": f"input {number}: {message[:300]}"}
        if (more := get_peak_bytes() - before) > MAX_MORE_BYTES:
            return {"fault": f"input {number}: memory has grown by {more / 2**20:.0f} MiB"}
    faulthandler.cancel_dump_traceback_later()
    return dict(found)


def get_peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def collect(
    journal: Journal, inputs: int, seed: str, only: str | None, batch: int, minutes: float
) -> bool:
    """Run batches until the journal has this many inputs; return whether there was no fault."""
    deadline = time.monotonic() + 60 * minutes
    names = [name for name in TARGETS if only is None or name.startswith(only)]
    weights = [SHARES[name.split(":")[0]] for name in names]
    context = get_context("forkserver")
    context.set_forkserver_preload(["targets"])
    while count_inputs(journal.records) < inputs and time.monotonic() < deadline:
        number = len(journal.records) + 1
        batch_seed = f"{seed}-{number}"
        name = random.Random(batch_seed).choices(names, weights)[0]
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(1, context) as pool,
        ):
            arguments = name, batch_seed, batch, Path(folder)
            try:
                outcome = pool.submit(run_batch, *arguments).result()
            except BrokenProcessPool:
                outcome = {"fault": "crash or hang: " + (Path(folder) / "current").read_text()}
        journal.append({"seed": batch_seed, "target": name, "inputs": batch, **outcome})
        print(f"{batch_seed} {name}: {outcome}", flush=True)
        if "fault" in outcome:
            return False
    return True


def count_inputs(records: list[dict[str, Any]]) -> int:
    """Return the number of inputs of batches without a fault."""
    return sum(record["inputs"] for record in records if "fault" not in record)


def summarize(records: list[dict[str, Any]]) -> str:
    """Return a table of the inputs by kind of target."""
    counts = {kind: Counter[str]() for kind in SHARES}
    for record in records:
        count = counts[record["target"].split(":")[0]]
        count["faults"] += "fault" in record
        for outcome in ("used", "rejected"):
            count[outcome] += record.get(outcome, 0)
    lines = ["| input | used | rejected | faults |", "| --- | --- | --- | --- |"]
    for kind, count in counts.items():
        lines.append(f"| {kind} | {count['used']:,} | {count['rejected']:,} | {count['faults']} |")
    total = sum(counts.values(), Counter[str]())
    lines.append(f"| all | {total['used']:,} | {total['rejected']:,} | {total['faults']} |")
    return "\n".join(lines)


def main() -> None:
    """Collect batches in a journal, then print a summary of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="in the journal at the end")
    parser.add_argument("--journal", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--seed", default="1", help="of all that is drawn")
    parser.add_argument("--batch", type=int, default=BATCH_INPUTS, help="inputs of a process")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="to stop after, at a batch's end"
    )
    parser.add_argument("--only", help="targets whose name starts so")
    parser.add_argument("--page", type=Path, help="page of the book, to write the table to")
    options = parser.parse_args()
    journal = Journal(options.journal)
    limits = options.only, options.batch, options.minutes
    good = collect(journal, options.inputs, options.seed, *limits)
    print(table := summarize(journal.records))
    if options.page:
        write_table("hostile", table, options.page)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
