"""What a deployment is called, where its data are, and which objects of the cluster it uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rescnet_dist.errors import SpecError, mask_secrets, suggest_name
from rescnet_dist.flags import option_name

KINDS = ("job", "cluster")
LONGEST_NAME = 40  # as the operator adds "-default-worker-0123456789" to names of 63 at most
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
NOTICE_MARGIN = 5  # seconds of an eviction notice that are left to Kubernetes itself
STOPPING = 5  # seconds of the rest that a worker has to end in, and Python to start before
LEAST_NOTICE = 15  # seconds: in less nothing can be handed over
EMBEDDED = "digits"  # data that are inside the package


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to deploy.

    kind: a training job with a cluster of its own, or a long-lived cluster that grows and shrinks.
    data, store: s3:// URLs, or "digits" for the data; of a job only. secret: name of the Secret
    with S3 credentials; service_account: one that exists and has the right to the buckets, instead.
    tls_secret: name of the Secret with ca.crt, tls.crt and tls.key. endpoint: of an S3 server other
    than Amazon's. notice: seconds between the notice of an eviction and the end of a machine.
    operator: namespace of the Dask operator.
    """

    kind: str = "job"
    name: str = "rescnet"
    namespace: str = "rescnet"
    image: str = "rescnet-dist:0.1.0"
    data: str | None = None
    store: str | None = None
    secret: str = "rescnet-s3"
    service_account: str | None = None
    tls_secret: str = "rescnet-tls"
    endpoint: str | None = None
    notice: int = 30
    operator: str = "dask-operator"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"Unknown kind {self.kind!r}. {suggest_name(self.kind, KINDS)}")
        for what in ("name", "namespace", "secret", "service_account", "tls_secret", "operator"):
            _check_label(what, getattr(self, what), LONGEST_NAME if what == "name" else 63)
        if self.notice < LEAST_NOTICE:
            raise SpecError(
                f"--notice {self.notice} s is too short to leave in: give at least {LEAST_NOTICE} s"
            )
        _check_image(self.image)
        if self.kind == "job":
            _check_url("data", self.data, EMBEDDED)
            _check_url("store", self.store)
            if self.data == self.store:
                raise SpecError(f"--data and --store are both {self.data}: give two URLs")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)

    @property
    def grace(self) -> int:
        """Seconds that a worker has to leave in."""
        return self.notice - NOTICE_MARGIN

    @property
    def leaving(self) -> int:
        """Seconds of these in which a worker hands over what it holds."""
        return self.grace - STOPPING

    @property
    def scheduler(self) -> str:
        """Address of the scheduler, for all pods of the namespace."""
        return f"tls://{self.name}-scheduler:8786"

    @property
    def store_port(self) -> int:
        """Port of the S3 server."""
        location = urlsplit(self.endpoint or "https:")
        return location.port or (80 if location.scheme == "http" else 443)

    @property
    def account(self) -> str:
        """Name of the service account that pods run as."""
        return self.service_account or self.name


def _check_label(what: str, value: str | None, longest: int) -> None:
    if value is None or (LABEL.fullmatch(value) and len(value) <= longest):
        return
    raise SpecError(
        f"{option_name(what)} {value!r} is no name for Kubernetes: use at most {longest} "
        "small letters, digits and hyphens, with a letter or digit at both ends"
    )


def _check_url(what: str, url: str | None, *others: str) -> None:
    """Refuse what pods cannot read, and what would show a secret to all who see the manifests."""
    also = "".join(f" or {other!r}" for other in others)
    if url is None or not url:
        raise SpecError(f"no --{what}: give an s3:// URL{also}")
    if mask_secrets(url) != url:
        raise SpecError(
            f"--{what} {url} carries credentials, which everybody who sees the manifests could "
            "read: put them into a Secret (--secret), or use a service account (--service-account)"
        )
    location = urlsplit(url)
    if url in others or (location.scheme == "s3" and location.netloc and location.path.strip("/")):
        return
    raise SpecError(
        f"--{what} {url} is not reached from every pod: give an s3://bucket/path URL{also} "
        "(other servers than Amazon's by --endpoint)"
    )


def _check_endpoint(url: str) -> None:
    location = urlsplit(url)
    if mask_secrets(url) != url:
        raise SpecError(f"--endpoint {url} carries credentials: put them into a Secret (--secret)")
    try:
        good = location.scheme in ("http", "https") and location.hostname and location.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise SpecError(
            f"--endpoint {url} is not the address of an S3 server: give it as https://host:port"
        )


def _check_image(image: str) -> None:
    """Refuse an image that may be another one tomorrow."""
    name, _, digest = image.partition("@")
    path, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    fixed = re.fullmatch(r"sha256:[0-9a-f]{64}", digest) or (tag and not digest)
    spelt = re.fullmatch(r"[a-z0-9._:/-]*", path) and re.fullmatch(r"[a-z0-9._-]+", last)
    if not spelt or not fixed or not re.fullmatch(r"[\w.-]*", tag) or tag == "latest":
        raise SpecError(
            f"--image {image} does not name one version: give it as name:version or "
            "name@sha256:…, the name in small letters"
        )
