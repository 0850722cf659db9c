"""Kills and soak as short tests; the long ones are commands that can be stopped and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import kills
import numpy as np
import pytest
import soak
from fork_server import Forked, ForkServer, catches
from journal import Journal, read_table

FOLDER = Path(__file__).parent


def test_rounds_are_drawn_from_their_seed() -> None:
    """The same seed gives the same faults; those that are not possible are never drawn."""
    drawn = [kills.Round.draw(f"1-{number}", {}) for number in range(200)]
    assert drawn == [kills.Round.draw(f"1-{number}", {}) for number in range(200)]
    assert {fault.kind for round_ in drawn for fault in round_.faults} == set(kills.KINDS)
    assert {round_.variant for round_ in drawn} == set(kills.VARIANTS)
    missing = {"store": "no server", "cut": "not allowed"}
    fewer = [kills.Round.draw(f"1-{number}", missing) for number in range(200)]
    assert not any(round_.on_s3 for round_ in fewer)
    found = {fault.kind for round_ in fewer for fault in round_.faults}
    assert found == kills.KINDS.keys() - missing


def test_book_shows_the_journal() -> None:
    """`kills.py --page` writes the table."""
    records = Journal(FOLDER / "kills.jsonl").records
    assert read_table("kills") == kills.summarize(records)


def test_rounds_of_each_seed_are_numbered() -> None:
    """A journal may have rounds of several seeds, whose names may have dashes."""
    records = [{"seed": "1-7"}, {"seed": "1-9"}, {"seed": "1-9-2"}]
    assert [kills.next_round(records, seed) for seed in ("1", "1-9", "2")] == [10, 3, 1]


def test_signals_end_a_driver_only_if_they_were_sent_to_it() -> None:
    """A driver that catches SIGTERM has to end with an exit code."""
    driver = Forked(ForkServer(Path(), {}), 0, "rescnet")
    assert not any(kills.is_expected(code, driver) for code in (-15, -9, 1, 2))
    assert kills.is_expected(0, driver)
    assert kills.is_expected(75, driver)
    driver.sent = {signal.SIGTERM: True, signal.SIGKILL: False}
    assert not kills.is_expected(-15, driver)
    assert kills.is_expected(-9, driver)
    driver.sent = {signal.SIGTERM: False}
    assert kills.is_expected(-15, driver)


def test_handlers_of_a_process_are_found() -> None:
    """Those of this process: pytest has none for SIGUSR2."""
    assert not catches(os.getpid(), signal.SIGUSR2)
    handler = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, handler)
    assert not catches(os.getpid(), signal.SIGUSR2)


def test_journal_continues_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A kill during a write loses that line only."""
    path = tmp_path / "journal.jsonl"
    Journal(path).append({"kind": "worker"}, {"kind": "driver"})
    path.write_text(path.read_text()[:-5])
    journal = Journal(path)
    assert journal.records == [{"kind": "worker"}]
    journal.append({"kind": "scheduler"})
    assert Journal(path).records == [{"kind": "worker"}, {"kind": "scheduler"}]


@pytest.mark.parametrize(
    ("slope", "files", "flat"), [(0, 0, True), (9000, 0, False), (0, 1, False)]
)
def test_growth_is_found(slope: float, files: float, flat: bool) -> None:
    """Memory that grows by 9 kB a layer below noise, and files that are never closed, are found."""
    noise = np.random.default_rng(0).normal(0, 2e5, 600)
    records = [
        {
            "layer": layer,
            **{
                role: {
                    "pid": 1,
                    "rss": int(1e8 + slope * layer + noise[layer]),
                    "files": int(30 + files * layer),
                    "threads": 4,
                }
                for role in soak.ROLES
            },
        }
        for layer in range(600)
    ]
    assert soak.is_flat(soak.measure(records)) == flat


@pytest.mark.endurance
def test_kills_change_no_bit(tmp_path: Path) -> None:
    """Some rounds of `kills.py`, with a seed of their own."""
    journal = tmp_path / "kills.jsonl"
    command = [sys.executable, FOLDER / "kills.py", "--kills", "20", "--journal", journal]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(Journal(journal).records) >= 20


@pytest.mark.endurance
def test_soak_is_flat(tmp_path: Path) -> None:
    """A short run of `soak.py`."""
    command = [sys.executable, FOLDER / "soak.py", "--layers", "500", "--journal"]
    result = subprocess.run([*command, tmp_path / "soak.jsonl"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
