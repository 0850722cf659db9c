"""Manifests as YAML: plain documents with comments, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rescnet_dist.errors import RescnetError


def to_yaml(
    documents: Iterable[Any], comment: str = "", line_comments: Mapping[str, str] | None = None
) -> str:
    """Return documents as YAML below a comment.

    line_comments maps lines of the YAML to comments that are inserted above them.
    """
    try:
        import yaml  # an optional dependency, though Dask brings it
    except ImportError:
        raise RescnetError("Manifests need PyYAML. Run pip install 'rescnet-dist[k8s]'.") from None

    class PlainDumper(yaml.SafeDumper):
        """Writes repeated objects out instead of using anchors, for kustomize and for people."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent_text(dumper: Any, value: str) -> Any:
        """Write text of several lines, such as code, as a literal block."""
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    PlainDumper.add_representer(str, represent_text)

    def add_comment(line: str) -> str:
        """Return a line below its comment, if it has one."""
        indent = " " * (len(line) - len(line.lstrip()))
        comment_lines = (line_comments or {}).get(line, "").splitlines()
        return "".join(f"{indent}# {text}\n" for text in comment_lines) + line

    texts = [yaml.dump(d, Dumper=PlainDumper, sort_keys=False, width=100) for d in documents]
    if line_comments:
        texts = ["\n".join(map(add_comment, text.split("\n"))) for text in texts]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "---\n".join(texts)
