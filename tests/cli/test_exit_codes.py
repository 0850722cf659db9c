"""Exit codes: 75 only where the same command may succeed later, 2 for everything else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from distributed import Client

from rescnet_dist import errors
from rescnet_dist.cli import main
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.errors import RescnetError, StoreFullError
from rescnet_dist.store import Location
from tests.conftest import clear_s3_cache

RESUMABLE = {
    "ClaimLostError",
    "ClusterLostError",
    "ClusterUnreachableError",
    "StoreFullError",
    "StoreUnreachableError",
}
SMALL = ("--filters", "2", "--max-layers", "1", "--block", "14", "--stride", "14")


def rescnet(*words: Any) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


def test_each_error_has_its_code() -> None:
    """Of all classes of errors."""
    kinds = [
        kind
        for kind in (getattr(errors, name) for name in errors.__all__)
        if isinstance(kind, type) and issubclass(kind, RescnetError)
    ]
    for kind in kinds:
        with pytest.raises(SystemExit) as stop, exit_codes():
            raise kind("a problem")
        assert stop.value.code == (75 if kind.__name__ in RESUMABLE else 2), kind
    assert {kind.__name__ for kind in kinds} >= RESUMABLE


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Remove all credentials for S3 from the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    clear_s3_cache()
    yield
    clear_s3_cache()


@pytest.mark.parametrize(
    "command",
    [
        ("info", "s3://bucket/run"),
        ("train", "digits", "--store", "s3://bucket/run", *SMALL),
        ("train", "s3://bucket/data.zarr", *SMALL),
    ],
    ids=["run", "store", "data"],
)
def test_missing_credentials(no_credentials: None, command: tuple[str, ...]) -> None:
    """Repeating the command does not help."""
    result = rescnet(*command)
    assert result.exit_code == 2, result.output
    assert "there are no credentials" in result.output


def test_bad_bucket_name(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is in the message, which is one line."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    clear_s3_cache()
    result = rescnet("info", "s3://Bad_Bucket!/run")
    assert result.exit_code == 2, result.output
    assert 'Invalid bucket name "Bad_Bucket!"' in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "code"), [("tcp://127.0.0.1:1", 75), ("no-such://127.0.0.1", 2)]
)
def test_scheduler_that_does_not_answer(address: str, code: int, tmp_path: Path) -> None:
    """One that is gone may come back; a bad address does not change."""
    result = rescnet("train", "digits", "--store", tmp_path / "run", "--scheduler", address, *SMALL)
    assert result.exit_code == code, result.output
    assert f"No Dask scheduler answers at {address}" in result.output


def test_full_disk(tmp_path: Path) -> None:
    """The error of the operating system is StoreFullError, which ends a command with 75."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StoreFullError, match=r"No space left on device\. Free some space"):
        Location(str(tmp_path))._write(fail)


def test_too_little_free_disk(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found before anything is written, and the command may succeed later."""
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: usage)
    result = rescnet("train", "digits", "--store", tmp_path / "run", *SMALL)
    assert result.exit_code == 75, result.output
    assert "of free space, but the first layers of the run take" in result.output
    assert not (tmp_path / "run").exists()
