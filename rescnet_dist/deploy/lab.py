"""JupyterLab for this package: its Dask panel with our plots, and no questions on the first day."""

from __future__ import annotations

from typing import Any

PANEL = "dask-labextension:plugin"
NEWS = "@jupyterlab/apputils-extension:notification"
WIDGET = "dask-dashboard-launcher"  # what the panel's widgets are called in a workspace
# Two rows of two panes; of a pane with two plots the first is in front.
PANES = ((("accuracy", "residual"), ("progress", "store")), (("memory",), ("time",)))
# Where each of them is, by the panel's own layout: a plot above, two below, which stay behind ours.
ANCHORS = (
    ("tab-before", "individual-task-stream"),
    ("split-right", "individual-task-stream"),
    ("tab-before", "individual-workers-memory"),
    ("tab-before", "individual-progress"),
)
NOTEBOOK_SHARE = 0.44  # of the width


def lab_settings(dashboard: str = "", *, own_clusters: bool = True) -> dict[str, Any]:
    """JupyterLab's default settings, as its file labconfig/default_setting_overrides.json has them.

    dashboard: URL of the Dask dashboard that is looked at first, such as proxy/8787 behind the
    user's own server. own_clusters: whether the panel offers to start clusters.
    """
    return {
        PANEL: {
            "defaultURL": dashboard,
            "hideClusterManager": not own_clusters,
            "defaultLayout": _layout(),
        },
        NEWS: {"fetchNews": "false", "checkForUpdates": False},  # else it asks for leave to
    }


def lab_workspace(notebook: str) -> dict[str, Any]:
    """JupyterLab's default workspace: a notebook, and our plots beside it in their panes."""
    opened = f"notebook:{notebook}"
    panes = [[_tabs([_widget(name) for name in pane]) for pane in row] for row in PANES]
    plots = _split("vertical", [_split("horizontal", row) for row in panes])
    items = {}
    for name in (name for row in PANES for pane in row for name in pane):
        label = f"Rescnet {name.title()}"
        items[_widget(name)] = {"route": f"/{_route(name)}", "label": label, "key": label}
    beside = _split(
        "horizontal", [_tabs([opened]), plots],
        [NOTEBOOK_SHARE, 1 - NOTEBOOK_SHARE],
    )  # fmt: skip
    hidden = {"collapsed": True, "widgets": []}
    return {
        "metadata": {"id": "default"},
        "data": {
            "layout-restorer:data": {
                "main": {"dock": beside, "current": opened},
                "left": hidden | {"visible": True},
                "right": hidden | {"visible": True},
                "relativeSizes": [0, 1, 0],
            },
            opened: {"data": {"path": notebook, "factory": "Notebook"}},
            **{widget: {"data": {"item": item}} for widget, item in items.items()},
        },
    }


def _layout() -> dict[str, dict[str, str]]:
    """What `File > Launch Dask Dashboard Layout` opens: the same panes, in front of the three plots
    that the panel has by itself, which settings can add to, but take nothing from."""
    places: dict[str, dict[str, str]] = {}
    for pane, anchor in zip((*PANES[0], *PANES[1]), ANCHORS, strict=True):
        mode, ref = anchor
        for name in reversed(pane):  # what is opened last is in front
            places[_route(name)] = {"mode": mode, "ref": ref}
            mode, ref = "tab-before", _route(name)
    return places


def _route(name: str) -> str:
    return f"individual-rescnet-{name}"


def _widget(name: str) -> str:
    return f"{WIDGET}:/{_route(name)}"


def _tabs(widgets: list[str]) -> dict[str, Any]:
    return {"type": "tab-area", "currentIndex": 0, "widgets": widgets}


def _split(
    orientation: str, children: list[dict[str, Any]], sizes: list[float] | None = None
) -> dict[str, Any]:
    even = [1 / len(children)] * len(children)
    return {
        "type": "split-area",
        "orientation": orientation,
        "sizes": sizes or even,
        "children": children,
    }
