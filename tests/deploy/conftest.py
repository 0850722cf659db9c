"""Fixtures for the tests of deployments: Secrets, and pods as processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from images import IMAGE, certificates, this_image
from kubelet import Cluster, run_cluster


@pytest.fixture(scope="session")
def tls_secret(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The Secret with certificates, created by the commands of the guide."""
    return dict(certificates(tmp_path_factory.mktemp("tls")))


@pytest.fixture
def deploy(tls_secret: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that makes a `Cluster` of manifests, which ends with the test.

    The Secret with S3 keys exists only if it is given, and so do other images than the default.
    """
    with ExitStack() as stack:

        def apply(
            manifests: list[dict[str, Any]],
            s3_secret: dict[str, str] | None = None,
            images: dict[str, dict[str, str]] | None = None,
            **options: Any,
        ) -> Cluster:
            secrets = {"rescnet-tls": tls_secret} | ({"rescnet-s3": s3_secret} if s3_secret else {})
            all_images = {IMAGE: this_image()} | (images or {})
            folder = tmp_path / f"pods-{len(list(tmp_path.glob('pods-*')))}"
            folder.mkdir()
            return stack.enter_context(
                run_cluster(folder, manifests, secrets, all_images, **options)
            )

        yield apply


@pytest.fixture
def s3_secret(s3: None) -> dict[str, str]:
    """The Secret with the keys of the S3 server of the tests."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    return {name: os.environ[name] for name in names}
