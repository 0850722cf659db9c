"""What `rescnet deploy s3-policy` does, without the imports of a plan, which take two seconds."""

from __future__ import annotations

import json

import click

from rescnet_dist.deploy import Tenant, aws_policy, seaweedfs_identity


def s3_policy(name: str, store: str, data: tuple[str, ...], server: str) -> None:
    """Print what the key of the user NAME may do in an S3 store, as JSON."""
    user = Tenant(name)
    found = aws_policy(store, data)
    if server == "seaweedfs":
        found = seaweedfs_identity(user.name, store, data)
    click.echo(json.dumps(found, indent=2))
