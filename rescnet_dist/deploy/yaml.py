"""Manifests as YAML: plain documents, in the order they are written in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rescnet_dist.errors import RescnetError


def to_yaml(
    documents: Iterable[Any], comment: str = "", above: Mapping[str, str] | None = None
) -> str:
    """Documents one behind the other, under a comment; and more comments `above` certain lines."""
    try:
        import yaml  # an optional dependency, though Dask brings it
    except ImportError:
        raise RescnetError("manifests need PyYAML: pip install 'rescnet-dist[k8s]'") from None

    class Plain(yaml.SafeDumper):
        """Writes what is there twice out twice: kustomize and people do without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def verbatim(dumper: Any, value: str) -> Any:
        """Several lines as they are, as code is to be read."""
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, verbatim)

    def commented(line: str) -> str:
        indent = " " * (len(line) - len(line.lstrip()))
        words = (above or {}).get(line, "").splitlines()
        return "".join(f"{indent}# {word}\n" for word in words) + line

    dumped = [yaml.dump(d, Dumper=Plain, sort_keys=False, width=100) for d in documents]
    if above:
        dumped = ["\n".join(map(commented, text.split("\n"))) for text in dumped]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "---\n".join(dumped)
