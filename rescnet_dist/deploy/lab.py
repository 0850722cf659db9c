"""JupyterLab settings for this package: the Dask panel with our plots, and no news prompt."""

from __future__ import annotations

from typing import Any

DASK_PANEL = "dask-labextension:plugin"
NEWS_PLUGIN = "@jupyterlab/apputils-extension:notification"
PANEL_WIDGET = "dask-dashboard-launcher"  # name of the panel's widgets in a workspace
# Two rows of two panes; in a pane with two plots, the first is in front.
PLOT_PANES = ((("accuracy", "residual"), ("progress", "store")), (("memory",), ("time",)))
# Position of each pane relative to the panel's own plots, which stay in tabs under ours.
PANE_ANCHORS = (
    ("tab-before", "individual-task-stream"),
    ("split-right", "individual-task-stream"),
    ("tab-before", "individual-workers-memory"),
    ("tab-before", "individual-progress"),
)
NOTEBOOK_WIDTH_FRACTION = 0.44


def lab_settings(dashboard: str = "", *, own_clusters: bool = True) -> dict[str, Any]:
    """Return JupyterLab's default settings, for labconfig/default_setting_overrides.json.

    dashboard is the URL of the Dask dashboard that is opened first, such as proxy/8787 relative to
    the user's server. own_clusters says whether the panel offers to start clusters.
    """
    return {
        DASK_PANEL: {
            "defaultURL": dashboard,
            "hideClusterManager": not own_clusters,
            "defaultLayout": _layout(),
        },
        NEWS_PLUGIN: {"fetchNews": "false", "checkForUpdates": False},  # without this, it asks
    }


def lab_workspace(notebook: str) -> dict[str, Any]:
    """Return JupyterLab's default workspace: a notebook, and our plots in panes next to it."""
    notebook_id = f"notebook:{notebook}"
    panes = [[_tabs([_widget(name) for name in pane]) for pane in row] for row in PLOT_PANES]
    plots = _split("vertical", [_split("horizontal", row) for row in panes])
    items = {}
    for name in (name for row in PLOT_PANES for pane in row for name in pane):
        label = f"Rescnet {name.title()}"
        items[_widget(name)] = {"route": f"/{_route(name)}", "label": label, "key": label}
    widths = [NOTEBOOK_WIDTH_FRACTION, 1 - NOTEBOOK_WIDTH_FRACTION]
    dock = _split("horizontal", [_tabs([notebook_id]), plots], widths)
    hidden = {"collapsed": True, "widgets": []}
    return {
        "metadata": {"id": "default"},
        "data": {
            "layout-restorer:data": {
                "main": {"dock": dock, "current": notebook_id},
                "left": hidden | {"visible": True},
                "right": hidden | {"visible": True},
                "relativeSizes": [0, 1, 0],
            },
            notebook_id: {"data": {"path": notebook, "factory": "Notebook"}},
            **{widget: {"data": {"item": item}} for widget, item in items.items()},
        },
    }


def _layout() -> dict[str, dict[str, str]]:
    """Return the layout that `File > Launch Dask Dashboard Layout` opens: the same panes.

    They are in front of the panel's three default plots, which settings cannot remove.
    """
    layout: dict[str, dict[str, str]] = {}
    for pane, anchor in zip((*PLOT_PANES[0], *PLOT_PANES[1]), PANE_ANCHORS, strict=True):
        mode, ref = anchor
        for name in reversed(pane):  # the last one opened is in front
            layout[_route(name)] = {"mode": mode, "ref": ref}
            mode, ref = "tab-before", _route(name)
    return layout


def _route(name: str) -> str:
    """Return the route of a plot in the Dask dashboard."""
    return f"individual-rescnet-{name}"


def _widget(name: str) -> str:
    """Return the id of the widget of a plot."""
    return f"{PANEL_WIDGET}:/{_route(name)}"


def _tabs(widgets: list[str]) -> dict[str, Any]:
    """Return a pane with tabs."""
    return {"type": "tab-area", "currentIndex": 0, "widgets": widgets}


def _split(
    orientation: str, children: list[dict[str, Any]], sizes: list[float] | None = None
) -> dict[str, Any]:
    """Return panes next to each other, of equal sizes by default."""
    even = [1 / len(children)] * len(children)
    return {
        "type": "split-area",
        "orientation": orientation,
        "sizes": sizes or even,
        "children": children,
    }
