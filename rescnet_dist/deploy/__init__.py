"""Deployment on Kubernetes: manifests as plain dicts, made from a spec and its plan."""

from rescnet_dist.deploy.board import PANELS
from rescnet_dist.deploy.hub import HUB_COMMENTS, hub_values
from rescnet_dist.deploy.kustomize import kustomize_files
from rescnet_dist.deploy.lab import lab_settings, lab_workspace
from rescnet_dist.deploy.manifests import manifests
from rescnet_dist.deploy.monitoring import alert_rules, monitoring_files
from rescnet_dist.deploy.overlays import OVERLAYS, with_overlays
from rescnet_dist.deploy.settings import KINDS, Deployment
from rescnet_dist.deploy.sizes import Node, Sizes, compute_sizes, find_narrow_margin
from rescnet_dist.deploy.tenants import Tenant, aws_policy, seaweedfs_identity, tenant_manifests
from rescnet_dist.deploy.training import training_flags
from rescnet_dist.deploy.yaml import to_yaml

__all__ = [
    "HUB_COMMENTS",
    "KINDS",
    "OVERLAYS",
    "PANELS",
    "Deployment",
    "Node",
    "Sizes",
    "Tenant",
    "alert_rules",
    "aws_policy",
    "compute_sizes",
    "find_narrow_margin",
    "hub_values",
    "kustomize_files",
    "lab_settings",
    "lab_workspace",
    "manifests",
    "monitoring_files",
    "seaweedfs_identity",
    "tenant_manifests",
    "to_yaml",
    "training_flags",
    "with_overlays",
]
