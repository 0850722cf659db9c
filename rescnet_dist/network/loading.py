"""Loading and verification of networks of any kind."""

from __future__ import annotations

import os

from rescnet_dist.errors import CorruptDataError, SpecError, StorePermissionError, StoreReadError
from rescnet_dist.network.base import BaseNetwork
from rescnet_dist.network.describe import network_locations
from rescnet_dist.network.fusion import FusedNetwork
from rescnet_dist.network.network import Network
from rescnet_dist.store import (
    FUSED_FORMAT,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    check_format,
    has_checksum,
)


def load_network(url: str | os.PathLike[str]) -> Network | FusedNetwork:
    """Load a saved network, a fused network, or the network of a run at its chosen depth.

    Parameters
    ----------
    url : str or os.PathLike
        fsspec URL of a saved network, a folder or a zip file, or of a run store.

    Returns
    -------
    Network or FusedNetwork
        The network; its layers are read when they are used.

    Raises
    ------
    StoreError
        If there is no network at the URL, or no finished layer.
    """
    attributes = check_format(Location.of(url), NETWORK_FORMAT, FUSED_FORMAT, RUN_FORMAT)
    is_fused = attributes["format"] == FUSED_FORMAT
    return FusedNetwork.load(url) if is_fused else Network.load(url)


def verify_network(url: str | os.PathLike[str]) -> list[str]:
    """Compare the classes, settings and arrays of all layers of a network with their checksums.

    Networks that earlier releases saved have no checksum of classes and settings; see
    `has_metadata_checksum`.

    Parameters
    ----------
    url : str or os.PathLike
        fsspec URL of a saved network or a fused network, a folder or a zip file.

    Returns
    -------
    list of str
        One description for each layer that is damaged, or of damaged classes and settings; empty
        if all are as they were saved.
    """
    problems = []
    try:
        network = load_network(url)
        networks = network.networks if isinstance(network, FusedNetwork) else (network,)
    except CorruptDataError as error:
        return [str(error)]
    for one in networks:
        for number in range(one.depth):
            try:
                one.layers[number]
            except CorruptDataError as error:
                problems.append(str(error))
            except StorePermissionError:
                raise
            except StoreReadError as error:
                problems.append(f"Layer {number + 1} is damaged or missing: {error}")
    return problems


def has_metadata_checksum(url: str | os.PathLike[str]) -> bool:
    """Return whether the classes and settings of a saved or fused network have checksums."""
    location = Location.of(url)
    attributes = check_format(location, NETWORK_FORMAT, FUSED_FORMAT)
    members = network_locations(location, attributes.get("networks", 0))
    stored = [attributes, *(check_format(member, NETWORK_FORMAT) for member in members)]
    return all(map(has_checksum, stored))


def require_layers(network: BaseNetwork) -> Network:
    """Return a network that has layers of its own; raise SpecError if it is fused."""
    if isinstance(network, Network):
        return network
    raise SpecError(
        "This is a fused network, which has no layers, features or maps of its own. Use one of "
        "the networks that it is made of: rd.FusedNetwork.load(url).networks."
    )
