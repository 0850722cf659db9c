"""Settings of a deployment: its names, its URLs, and the cluster objects that it refers to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rescnet_dist.errors import SpecError, mask_secrets, suggest_name
from rescnet_dist.formatting import option_name

KINDS = ("job", "cluster")
MAX_LABEL_LENGTH = 63  # in Kubernetes
MAX_NAME_LENGTH = 40  # the operator appends "-default-worker-0123456789" to the name
LABEL_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
NOTICE_MARGIN_SECONDS = 5  # of an eviction notice, left to Kubernetes itself
WORKER_EXIT_SECONDS = 5  # of the rest, for starting Python before, and ending the worker after
MIN_NOTICE_SECONDS = 15  # a worker cannot hand over its data in less
EMBEDDED_DATA = "digits"  # the dataset inside the package


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to deploy.

    Attributes
    ----------
    kind : {"job", "cluster"}
        A training job with its own cluster, or a long-lived cluster that grows and shrinks.
    name, namespace, image : str
    data, store : str or None
        s3:// URLs, or "digits" for the data; of a job only.
    secret : str
        Name of the Secret with S3 credentials.
    service_account : str or None
        Existing service account with access to the buckets, instead of the Secret.
    tls_secret : str
        Name of the Secret with ca.crt, tls.crt and tls.key.
    endpoint : str or None
        URL of an S3 server other than Amazon's.
    notice : int
        Seconds between the notice of an eviction and the end of a machine.
    operator : str
        Namespace of the Dask operator.
    tries : int
        Tries in a row without a finished layer, after which a job fails.
    deadline : int
        Seconds after which a job fails, whatever it does.
    idle_timeout : int
        Seconds without a task after which a long-lived cluster is removed; 0 for never.
    priority_class, worker_priority_class : str or None
        Existing priority classes of scheduler and driver, and of the workers.
    monitoring : str or None
        Namespace of a Prometheus that may scrape the pods, with the Prometheus operator's kinds.
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
    tries: int = 6
    deadline: int = 7 * 24 * 3600
    idle_timeout: int = 3600
    priority_class: str | None = None
    worker_priority_class: str | None = None
    monitoring: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"Unknown kind {self.kind!r}. {suggest_name(self.kind, KINDS)}")
        labels = ("name", "namespace", "secret", "service_account", "tls_secret", "operator")
        for field in (*labels, "priority_class", "worker_priority_class", "monitoring"):
            limit = MAX_NAME_LENGTH if field == "name" else MAX_LABEL_LENGTH
            _check_label(field, getattr(self, field), limit)
        if self.notice < MIN_NOTICE_SECONDS:
            raise SpecError(
                f"--notice {self.notice} s is too short for a worker to hand over its data. Use "
                f"at least {MIN_NOTICE_SECONDS} s."
            )
        for field, least in (("tries", 1), ("deadline", 1), ("idle_timeout", 0)):
            if (value := getattr(self, field)) < least:
                raise SpecError(f"{option_name(field)} {value} is too small. Use at least {least}.")
        _check_image(self.image)
        if self.kind == "job":
            _check_url("data", self.data, EMBEDDED_DATA)
            _check_url("store", self.store)
            if self.data == self.store:
                raise SpecError(f"--data and --store are both {self.data}. Use two URLs.")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)

    @property
    def grace_seconds(self) -> int:
        """Seconds that a worker's pod has to terminate."""
        return self.notice - NOTICE_MARGIN_SECONDS

    @property
    def retire_seconds(self) -> int:
        """Seconds of these in which a worker hands over its data."""
        return self.grace_seconds - WORKER_EXIT_SECONDS

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler for all pods of the namespace."""
        return f"tls://{self.name}-scheduler:8786"

    @property
    def store_port(self) -> int:
        """Port of the S3 server."""
        location = urlsplit(self.endpoint or "https:")
        return location.port or (80 if location.scheme == "http" else 443)

    @property
    def account(self) -> str:
        """Name of the service account of the pods."""
        return self.service_account or self.name


def _check_label(field: str, value: str | None, limit: int) -> None:
    """Raise SpecError if a value is not a Kubernetes name of at most `limit` characters."""
    if value is None or (LABEL_PATTERN.fullmatch(value) and len(value) <= limit):
        return
    raise SpecError(
        f"{option_name(field)} {value!r} is not a Kubernetes name. Use at most {limit} lowercase "
        "letters, digits and hyphens, with a letter or digit at both ends."
    )


def _check_url(field: str, url: str | None, *alternatives: str) -> None:
    """Raise SpecError if pods cannot read a URL, or if it has credentials.

    Everybody who can see the manifests could read the credentials.
    """
    others = "".join(f" or {name!r}" for name in alternatives)
    if url is None or not url:
        raise SpecError(f"--{field} is missing. Use an s3:// URL{others}.")
    if mask_secrets(url) != url:
        raise SpecError(
            f"--{field} {url} contains credentials, which everybody who sees the manifests could "
            "read. Put them into a Secret (--secret), or use a service account (--service-account)."
        )
    location = urlsplit(url)
    is_object = location.scheme == "s3" and location.netloc and location.path.strip("/")
    if url in alternatives or is_object:
        return
    raise SpecError(
        f"--{field} {url} cannot be reached from every pod. Use an s3://bucket/path URL{others} "
        "(with --endpoint for other servers than Amazon's)."
    )


def _check_endpoint(url: str) -> None:
    """Raise SpecError if a URL is not the address of an S3 server, or has credentials."""
    location = urlsplit(url)
    if mask_secrets(url) != url:
        raise SpecError(
            f"--endpoint {url} contains credentials. Put them into a Secret (--secret)."
        )
    try:
        is_valid = location.scheme in ("http", "https") and location.hostname and location.port != 0
    except ValueError:  # the port is not a number
        is_valid = False
    if not is_valid:
        raise SpecError(
            f"--endpoint {url} is not the address of an S3 server. Use the form https://host:port."
        )


def _check_image(image: str) -> None:
    """Raise SpecError if an image name is invalid, or may refer to another image tomorrow."""
    name, _, digest = image.partition("@")
    path, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    is_pinned = re.fullmatch(r"sha256:[0-9a-f]{64}", digest) or (tag and not digest)
    is_name = re.fullmatch(r"[a-z0-9._:/-]*", path) and re.fullmatch(r"[a-z0-9._-]+", last)
    if not is_name or not is_pinned or not re.fullmatch(r"[\w.-]*", tag) or tag == "latest":
        raise SpecError(
            f"--image {image} does not name one version. Use name:version or name@sha256:…, with "
            "a lowercase name."
        )
