"""Deploying on Kubernetes: from a spec and its plan to manifests, as plain dictionaries."""

from rescnet_dist.deploy.hub import COMMENTS, hub_values
from rescnet_dist.deploy.kustomize import kustomize_files
from rescnet_dist.deploy.lab import lab_settings, lab_workspace
from rescnet_dist.deploy.manifests import manifests
from rescnet_dist.deploy.overlays import OVERLAYS, with_overlay
from rescnet_dist.deploy.settings import KINDS, Deployment
from rescnet_dist.deploy.sizes import Node, Sizes, sized
from rescnet_dist.deploy.training import training_flags
from rescnet_dist.deploy.yaml import to_yaml

__all__ = [
    "COMMENTS",
    "KINDS",
    "OVERLAYS",
    "Deployment",
    "Node",
    "Sizes",
    "hub_values",
    "kustomize_files",
    "lab_settings",
    "lab_workspace",
    "manifests",
    "sized",
    "to_yaml",
    "training_flags",
    "with_overlay",
]
