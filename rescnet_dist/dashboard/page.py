"""The page of runs: all plots in one Bokeh document, light or dark, kept up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import LayoutDOM, Select
from bokeh.themes import Theme

from rescnet_dist.dashboard.plots import PLOTS, RunPlot, Views, names_of
from rescnet_dist.dashboard.view import RunView

EVERY = 1000  # milliseconds between two looks at the runs

INK = {False: ("#ffffff", "#1f2328", "#d8dee4"), True: ("#161b22", "#e6edf3", "#3d444d")}

STYLE = """
<style>
  html, body {{ background: {paper}; color: {ink}; }}
  .content {{ height: calc(100vh - {above}); }}
  .theme {{ position: fixed; right: 12px; bottom: 4px; font: 12px sans-serif; z-index: 2; }}
  .theme, .theme:visited {{ color: {ink}; }}
</style>
"""

SWITCH = '<a class="theme" href="?theme={other}">{other}</a>'

# a page asked for without a theme takes, and keeps to, that of the JupyterLab it is a frame of
FOLLOW = """
<script>
  (() => {{
    const asked = new URLSearchParams(location.search);
    const browser = matchMedia("(prefers-color-scheme: dark)");
    let lab = null;
    try {{ lab = parent !== window && parent.document.body; }} catch {{ /* another site's */ }}
    const dark = () => lab?.dataset?.jpThemeLight
      ? lab.dataset.jpThemeLight === "false" : {otherwise};
    const follow = () => {{
      const wanted = dark() ? "dark" : "light";
      if (asked.has("theme") || wanted === (asked.get("auto") ?? "light")) return;
      asked.set("auto", wanted);
      location.replace("?" + asked);
    }};
    follow();
    browser.addEventListener("change", follow);
    const watched = {{attributeFilter: ["data-jp-theme-light"]}};
    if (lab) new MutationObserver(follow).observe(lab, watched);
  }})();
</script>
"""


def wants_dark(doc: Document) -> bool:
    """Whether the browser asked for the dark page, by ?theme=dark, or ?auto=dark of `follow`."""
    context = doc.session_context
    arguments = context.request.arguments if context and context.request else {}
    return (arguments.get("theme") or arguments.get("auto") or [b""])[-1] == b"dark"


def style(dark: bool, *, above: str = "1.5rem") -> str:
    """The page's own style, as HTML; above is how high that is which does not belong to it."""
    paper, ink, _ = INK[dark]
    return STYLE.format(paper=paper, ink=ink, above=above)


def switch(dark: bool) -> str:
    """A link to the same page in the other theme."""
    return SWITCH.format(other="light" if dark else "dark")


def follow(*, browser: bool) -> str:
    """What makes the page dark inside a dark JupyterLab, as HTML for its head; elsewhere it takes
    the theme that the browser prefers, or is light."""
    return FOLLOW.format(otherwise="browser.matches" if browser else "false")


def theme(dark: bool) -> Theme:
    """The colors of the plots."""
    paper, ink, rule = INK[dark]
    text = {"text_color": ink}
    attrs: dict[str, Any] = {
        "Plot": {
            "background_fill_color": paper,
            "border_fill_color": paper,
            "outline_line_color": rule,
        },
        "Grid": {"grid_line_color": rule, "grid_line_alpha": 0.6},
        "Axis": {
            "axis_line_color": rule,
            "major_tick_line_color": rule,
            "minor_tick_line_color": None,
            "major_label_text_color": ink,
            "axis_label_text_color": ink,
            "axis_label_text_font_style": "normal",
        },
        "Title": text,
        "Legend": {
            "background_fill_color": paper,
            "background_fill_alpha": 0.75,
            "border_line_color": None,
            "label_text_color": ink,
        },
        "Div": {"styles": {"color": ink, "font-size": "13px", "overflow": "auto"}},
        "Toolbar": {"logo": None},
    }
    return Theme(json={"attrs": attrs})


def show_plots(
    doc: Document, views: Views, kinds: Sequence[type[RunPlot]] = PLOTS, *, every: int = EVERY
) -> None:
    """Fill a document with plots of the runs that `views` gives, and keep them up to date while
    somebody looks."""
    plots = [kind(views) for kind in kinds]
    paper, ink, rule = INK[wants_dark(doc)]
    look = f"select.bk-input {{ background: {paper}; color: {ink}; border-color: {rule} }}"
    chooser = Select(
        title="time, memory and store of", visible=False, name="chooser", stylesheets=[look]
    )

    def update() -> None:
        _offer(chooser, views())
        for plot in plots:
            plot.wanted = chooser.value or None
            plot.update()

    update()
    chooser.on_change("value", lambda attr, old, new: update())
    doc.add_root(_layout([plot.root for plot in plots], chooser))
    doc.theme = theme(wants_dark(doc))
    doc.title = "rescnet: " + (kinds[0].name if len(kinds) == 1 else "runs")
    doc.add_periodic_callback(update, every)


def _offer(chooser: Select, views: Sequence[RunView]) -> None:
    """Let the user choose among several runs."""
    named = zip([view.url for view in views], names_of(views), strict=True)
    options = [("", "the latest run"), *named]
    if len(views) > 1 and chooser.options != options:
        chooser.options, chooser.visible = options, True


def _layout(roots: list[Any], chooser: Select) -> LayoutDOM:
    """Plots side by side, three in a row; one alone fills the page."""
    if len(roots) == 1:
        return roots[0]
    rows = [row(roots[i : i + 3], sizing_mode="stretch_both") for i in range(0, len(roots), 3)]
    return column([chooser, *rows], sizing_mode="stretch_both")
