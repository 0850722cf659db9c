"""Clusters of tests and benchmarks take free ports: others may run a cluster on this machine."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLUSTERS = ("LocalCluster", "Scheduler")
FREE_PORT = "127.0.0.1:0"  # None is port 8787


def find_clusters() -> Iterator[tuple[str, str | None]]:
    """Yield the place and the dashboard address of each call that starts a cluster."""
    for folder in ("rescnet_dist", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if not any(f"{name}(" in source for name in CLUSTERS):
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in CLUSTERS:
                    options = {option.arg: option.value for option in node.keywords}
                    if None in options:  # the rest is in a dictionary
                        continue
                    address = options.get("dashboard_address")
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield place, getattr(address, "value", None)


def test_clusters_take_free_ports() -> None:
    clusters = dict(find_clusters())
    assert len(clusters) > 20
    assert {place for place, address in clusters.items() if address != FREE_PORT} == set()
