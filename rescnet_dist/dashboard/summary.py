"""A run in a few words of HTML: how far it is, how well it does, and what went wrong."""

from __future__ import annotations

import time
from html import escape

from rescnet_dist.dashboard.view import RunView
from rescnet_dist.formatting import format_time

SHOWN_NOTES = 3


def describe_html(view: RunView) -> str:
    """A run in a few lines of HTML."""
    state = {"running": "is going on", "done": "is done", "unfinished": "has stopped"}[view.state]
    why = f": {escape(view.reason)}" if view.reason else ""
    lines = [f"<b>{escape(view.name)}</b> {state}{why}"]
    share = len(view.layers) / max(view.max_layers, 1)
    doing = f"layer {len(view.layers)} of {view.max_layers} done"
    if view.current and view.images:
        within = min(view.current.images / view.images, 1.0)
        share += within / max(view.max_layers, 1) if view.current.phase == "grow" else 0
        elapsed = max(time.time() - view.current.began, 1e-3)
        what = {"survey": "surveying", "score": "scoring", "save": "storing maps"}
        now = what.get(view.current.phase, f"growing layer {view.current.layer}")
        doing += f"; {now}, {100 * within:.0f} %, {view.current.images / elapsed:,.0f} images/s"
    bar = f"<progress value='{min(share, 1):.4f}' max='1' style='width:100%'></progress>"
    lines += [bar, doing]
    best = next((layer for layer in view.layers if layer.layer == view.depth), None)
    if best:
        shares = {"validation": best.validation, "training": best.train}
        known = ", ".join(f"{k} {100 * v:.2f} %" for k, v in shares.items() if v is not None)
        lines.append(f"best after layer {best.layer}: {known}")
    each, left = view.layer_seconds(), view.seconds_left()
    if each is not None:
        more = f"; at most {format_time(left)} left" if left is not None else ""
        lines.append(f"{format_time(each)} per layer of late{more}")
    lines += [f"<span style='color:#c77400'>{escape(n)}</span>" for n in view.notes[-SHOWN_NOTES:]]
    return f"<p style='margin:4px 8px'>{'<br>'.join(lines)}</p>"
