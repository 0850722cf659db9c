"""Summary of a run as a few lines of HTML: state, progress, accuracy and problems."""

from __future__ import annotations

import time
from html import escape

from rescnet_dist.dashboard.view import RunView
from rescnet_dist.formatting import format_time

MAX_SHOWN_NOTES = 3
STATE_TEXTS = {"running": "is running", "done": "is done", "unfinished": "has stopped"}
PHASE_TEXTS = {
    "views": "fitting views",
    "survey": "surveying",
    "score": "scoring",
    "save": "storing maps",
}


def describe_html(view: RunView) -> str:
    """Return a run as a few lines of HTML."""
    reason = f": {escape(view.reason)}" if view.reason else ""
    lines = [f"<b>{escape(view.name)}</b> {STATE_TEXTS[view.state]}{reason}"]
    share = len(view.layers) / max(view.max_layers, 1)
    progress = f"layer {len(view.layers)} of {view.max_layers} done"
    if view.current and view.images:
        pass_share = min(view.current.images / view.images, 1.0)
        share += pass_share / max(view.max_layers, 1) if view.current.phase == "grow" else 0
        elapsed = max(time.time() - view.current.started, 1e-3)
        activity = PHASE_TEXTS.get(view.current.phase, f"growing layer {view.current.layer}")
        rate = view.current.images / elapsed
        progress += f"; {activity}, {100 * pass_share:.0f} %, {rate:,.0f} images/s"
    bar = f"<progress value='{min(share, 1):.4f}' max='1' style='width:100%'></progress>"
    lines += [bar, progress]
    best = next((layer for layer in view.layers if layer.layer == view.depth), None)
    if best:
        training = f"training{view.train_suffix}"
        shares = {"validation": best.validation, training: best.train}
        texts = ", ".join(f"{k} {100 * v:.2f} %" for k, v in shares.items() if v is not None)
        lines.append(f"best accuracy after layer {best.layer}: {texts}")
    layer_seconds, seconds_left = view.layer_seconds(), view.seconds_left()
    if layer_seconds is not None:
        left = f"; at most {format_time(seconds_left)} left" if seconds_left is not None else ""
        lines.append(f"recently {format_time(layer_seconds)} per layer{left}")
    notes = view.notes[-MAX_SHOWN_NOTES:]
    lines += [f"<span style='color:#c77400'>{escape(note)}</span>" for note in notes]
    return f"<p style='margin:4px 8px'>{'<br>'.join(lines)}</p>"
