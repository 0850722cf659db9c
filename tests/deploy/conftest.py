"""What the tests of deployments share: Secrets, and pods as processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from images import IMAGE, certificates, this_image
from kubelet import Cluster, cluster


@pytest.fixture(scope="session")
def tls_secret(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The Secret with certificates, by the guide's own commands."""
    return dict(certificates(tmp_path_factory.mktemp("tls")))


@pytest.fixture
def deploy(tls_secret: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Applies manifests: gives a `Cluster` of them that is gone after the test. The Secret with S3
    keys is only there if it is given, other images than this one too."""
    with ExitStack() as stack:

        def deployed(
            manifests: list[dict[str, Any]],
            s3_secret: dict[str, str] | None = None,
            images: dict[str, dict[str, str]] | None = None,
            **more: Any,
        ) -> Cluster:
            secrets = {"rescnet-tls": tls_secret} | ({"rescnet-s3": s3_secret} if s3_secret else {})
            known = {IMAGE: this_image()} | (images or {})
            folder = tmp_path / f"pods-{len(list(tmp_path.glob('pods-*')))}"
            folder.mkdir()
            return stack.enter_context(cluster(folder, manifests, secrets, known, **more))

        yield deployed


@pytest.fixture
def s3_secret(s3: None) -> dict[str, str]:
    """The Secret with the keys of the S3 server of the tests."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    return {name: os.environ[name] for name in names}
