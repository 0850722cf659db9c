"""A tenant, a user or a team that shares a cluster: its namespace, its limits and its S3 policy.

Runs of a tenant are rendered with its namespace, where its Secrets are. Pods of other namespaces
cannot read these, and cannot connect to its pods. In the store, its key is good for its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rescnet_dist.deploy.pods import Manifest, format_quantity
from rescnet_dist.deploy.settings import LABEL_PATTERN, MAX_NAME_LENGTH
from rescnet_dist.deploy.sizes import SCRATCH_STORAGE_BYTES, Sizes
from rescnet_dist.errors import SpecError, mask_secrets

GPU_RESOURCE = "nvidia.com/gpu"
DASK_GROUP = "kubernetes.dask.org"
READ_ACTIONS, WRITE_ACTIONS = ("Read", "List"), ("Write", "Tagging")  # of SeaweedFS
# What a tenant may do in its namespace, by API group: what `kubectl apply` of a run needs. Limits
# and Secrets are not among it.
ALLOWED = {
    DASK_GROUP: ["daskjobs", "daskclusters", "daskautoscalers", "daskworkergroups"],
    "networking.k8s.io": ["networkpolicies"],
    "policy": ["poddisruptionbudgets"],
    "": ["serviceaccounts"],
}
VISIBLE = ["pods", "pods/log", "services", "events", "resourcequotas"]
VERBS = ["get", "list", "watch", "create", "patch", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of a cluster.

    Attributes
    ----------
    name : str
        Name of the tenant.
    runs : int, default 1
        Runs at the same time, which the limits have room for.
    user : str or None, default None
        User of Kubernetes who may start and watch runs in the namespace.
    gpus : int, default 0
        GPUs of a run.
    """

    name: str
    runs: int = 1
    user: str | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        if not LABEL_PATTERN.fullmatch(self.name) or len(self.name) > MAX_NAME_LENGTH:
            raise SpecError(
                f"NAME {self.name!r} is not a Kubernetes name. Use at most {MAX_NAME_LENGTH} "
                "lowercase letters, digits and hyphens, with a letter or digit at both ends."
            )

    @property
    def namespace(self) -> str:
        """Namespace of the tenant."""
        return f"rescnet-{self.name}"


def tenant_manifests(tenant: Tenant, sizes: Sizes) -> list[Manifest]:
    """Return the namespace of a tenant, with room for runs of these sizes, and what guards it."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": tenant.namespace,
                "labels": {
                    "app.kubernetes.io/part-of": "rescnet-dist",
                    "rescnet-dist/tenant": tenant.name,
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        },
        _object("v1", "ResourceQuota", tenant, {"spec": {"hard": _quota(tenant, sizes)}}),
        _object("v1", "LimitRange", tenant, {"spec": {"limits": [_limits(sizes)]}}),
        # what runs need is allowed by the policies of each
        _object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            tenant,
            {"spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}},
        ),
        *(_roles(tenant) if tenant.user else []),
    ]


def _quota(tenant: Tenant, sizes: Sizes) -> dict[str, str]:
    """Return the sum of the pods of all runs: workers, a scheduler and a driver each."""
    memory = sizes.workers * sizes.worker_pod + sizes.scheduler_pod + sizes.driver_pod
    storage = sizes.workers * sizes.worker_storage + 2 * SCRATCH_STORAGE_BYTES
    amounts = {
        "cpu": str(tenant.runs * (sizes.workers * sizes.threads + 2)),
        "memory": format_quantity(tenant.runs * memory),
        "ephemeral-storage": format_quantity(tenant.runs * storage),
    }
    return {
        **{f"requests.{name}": amount for name, amount in amounts.items()},
        **{f"limits.{name}": amount for name, amount in amounts.items()},
        f"requests.{GPU_RESOURCE}": str(tenant.runs * tenant.gpus),
        "pods": str(tenant.runs * (sizes.workers + 2)),
        f"count/daskclusters.{DASK_GROUP}": str(tenant.runs),  # a job has one
        # The operator makes what a DaskCluster describes. Runs need none of these.
        **dict.fromkeys(("services.loadbalancers", "services.nodeports"), "0"),
        "persistentvolumeclaims": "0",
    }


def _limits(sizes: Sizes) -> Manifest:
    """Return the limits of containers: those of a worker at most, a driver's without any."""
    own = {  # all that the quota limits, as it refuses containers that lack one
        "cpu": "1",
        "memory": format_quantity(sizes.driver_pod),
        "ephemeral-storage": format_quantity(SCRATCH_STORAGE_BYTES),
    }
    largest = max(sizes.worker_pod, sizes.scheduler_pod, sizes.driver_pod)
    return {
        "type": "Container",
        "default": own,
        "defaultRequest": dict(own),
        "max": {"cpu": str(max(sizes.threads, 1)), "memory": format_quantity(largest)},
    }


def _roles(tenant: Tenant) -> list[Manifest]:
    """Return what the user of a tenant may do in its namespace: start, watch and end runs."""
    rules = [
        {"apiGroups": [group], "resources": names, "verbs": VERBS}
        for group, names in ALLOWED.items()
    ]
    rules.append({"apiGroups": [""], "resources": VISIBLE, "verbs": VERBS[:3]})
    rules.append({"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]})
    api = "rbac.authorization.k8s.io"
    subject = {"kind": "User", "name": tenant.user, "apiGroup": api}
    role = {"kind": "Role", "name": f"tenant-{tenant.name}", "apiGroup": api}
    return [
        _object(f"{api}/v1", "Role", tenant, {"rules": rules}),
        _object(f"{api}/v1", "RoleBinding", tenant, {"subjects": [subject], "roleRef": role}),
    ]


def _object(version: str, kind: str, tenant: Tenant, content: Manifest) -> Manifest:
    """Return an object of the tenant's namespace."""
    metadata = {
        "name": f"tenant-{tenant.name}",
        "namespace": tenant.namespace,
        "labels": {"app.kubernetes.io/part-of": "rescnet-dist"},
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


# the store --------------------------------------------------------------------------------------


def seaweedfs_identity(name: str, store: str, data: tuple[str, ...]) -> Manifest:
    """Return an identity of a SeaweedFS server, without credentials.

    It may read and write under `store`, and read under `data`, s3:// URLs of folders.
    """
    own, others = "/".join(_parse_url(store)), ["/".join(_parse_url(url)) for url in data]
    actions = [f"{action}:{own}/*" for action in (*READ_ACTIONS, *WRITE_ACTIONS)]
    actions += [f"{action}:{path}/*" for path in others for action in READ_ACTIONS]
    return {"name": name, "credentials": [], "actions": actions}


def aws_policy(store: str, data: tuple[str, ...]) -> Manifest:
    """Return the policy of an AWS user or role with the same rights."""
    objects = "arn:aws:s3:::{}/{}/*".format
    statements: list[Manifest] = [
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            "Resource": objects(*_parse_url(store)),
        },
        {
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": [objects(*_parse_url(url)) for url in (store, *data)],
        },
    ]
    for bucket, path in (_parse_url(url) for url in (store, *data)):
        statements.append(
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": f"arn:aws:s3:::{bucket}",
                # Without the slash, the names of a folder that begins with this one's are listed.
                "Condition": {"StringLike": {"s3:prefix": f"{path}/*"}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def _parse_url(url: str) -> tuple[str, str]:
    """Return bucket and folder of an s3:// URL; raise SpecError without a folder."""
    location = urlsplit(url)
    path = location.path.strip("/")
    if location.scheme != "s3" or not location.netloc or not path or mask_secrets(url) != url:
        raise SpecError(
            f"{mask_secrets(url)} is not the folder of a tenant. Use s3://bucket/folder, without "
            "credentials."
        )
    if any(character in path for character in "*?$"):
        raise SpecError(f"{url} has a wildcard, which would match other folders. Leave it out.")
    return location.netloc, path
