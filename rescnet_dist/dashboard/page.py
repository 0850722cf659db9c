"""The Bokeh page of runs: all plots in one document, light or dark, updated periodically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import LayoutDOM, Select
from bokeh.themes import Theme

from rescnet_dist.dashboard.plots import PLOTS, RunPlot, Views, short_names
from rescnet_dist.dashboard.view import RunView

UPDATE_MILLISECONDS = 1000

# background, text and line colors, by whether the page is dark
PAGE_COLORS = {False: ("#ffffff", "#1f2328", "#d8dee4"), True: ("#161b22", "#e6edf3", "#3d444d")}

PAGE_STYLE = """
<style>
  html, body {{ background: {paper}; color: {ink}; }}
  .content {{ height: calc(100vh - {above}); }}
  .theme {{ position: fixed; right: 12px; bottom: 4px; font: 12px sans-serif; z-index: 2; }}
  .theme, .theme:visited {{ color: {ink}; }}
</style>
"""

THEME_LINK = '<a class="theme" href="?theme={other}">{other}</a>'

# A page requested without a theme follows the theme of the JupyterLab that it is a frame of.
THEME_SCRIPT = """
<script>
  (() => {{
    const query = new URLSearchParams(location.search);
    const browser = matchMedia("(prefers-color-scheme: dark)");
    let lab = null;
    try {{ lab = parent !== window && parent.document.body; }} catch {{ /* another site */ }}
    const dark = () => lab?.dataset?.jpThemeLight
      ? lab.dataset.jpThemeLight === "false" : {default_dark};
    const follow = () => {{
      const name = dark() ? "dark" : "light";
      if (query.has("theme") || name === (query.get("auto") ?? "light")) return;
      query.set("auto", name);
      location.replace("?" + query);
    }};
    follow();
    browser.addEventListener("change", follow);
    const options = {{attributeFilter: ["data-jp-theme-light"]}};
    if (lab) new MutationObserver(follow).observe(lab, options);
  }})();
</script>
"""


def is_dark(doc: Document) -> bool:
    """Return whether the request is for the dark page: ?theme=dark, or ?auto=dark of the script."""
    context = doc.session_context
    arguments = context.request.arguments if context and context.request else {}
    return (arguments.get("theme") or arguments.get("auto") or [b""])[-1] == b"dark"


def style_html(dark: bool, *, above: str = "1.5rem") -> str:
    """Return the style sheet of the page as HTML; above is the height of content over the plots."""
    paper, ink, _ = PAGE_COLORS[dark]
    return PAGE_STYLE.format(paper=paper, ink=ink, above=above)


def theme_link_html(dark: bool) -> str:
    """Return a link to the same page in the other theme."""
    return THEME_LINK.format(other="light" if dark else "dark")


def theme_script_html(*, follow_browser: bool) -> str:
    """Return a script for the head of the page that makes it dark inside a dark JupyterLab.

    Outside JupyterLab the page has the theme that the browser prefers, or is light.
    """
    return THEME_SCRIPT.format(default_dark="browser.matches" if follow_browser else "false")


def make_theme(dark: bool) -> Theme:
    """Return the Bokeh theme with the colors of the plots."""
    paper, ink, rule = PAGE_COLORS[dark]
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
    doc: Document,
    views: Views,
    kinds: Sequence[type[RunPlot]] = PLOTS,
    *,
    update_milliseconds: int = UPDATE_MILLISECONDS,
) -> None:
    """Fill a document with plots of the runs that `views` returns.

    The plots are updated as long as the document is open in a browser.
    """
    plots = [kind(views) for kind in kinds]
    paper, ink, rule = PAGE_COLORS[is_dark(doc)]
    stylesheet = f"select.bk-input {{ background: {paper}; color: {ink}; border-color: {rule} }}"
    chooser = Select(
        title="time, memory and store of", visible=False, name="chooser", stylesheets=[stylesheet]
    )

    def update() -> None:
        _update_options(chooser, views())
        for plot in plots:
            plot.selected_url = chooser.value or None
            plot.update()

    update()
    chooser.on_change("value", lambda attr, old, new: update())
    doc.add_root(_make_layout([plot.root for plot in plots], chooser))
    doc.theme = make_theme(is_dark(doc))
    doc.title = "rescnet: " + (kinds[0].name if len(kinds) == 1 else "runs")
    doc.add_periodic_callback(update, update_milliseconds)


def _update_options(chooser: Select, views: Sequence[RunView]) -> None:
    """Let the user select one of several runs."""
    named = zip([view.url for view in views], short_names(views), strict=True)
    options = [("", "the latest run"), *named]
    if len(views) > 1 and chooser.options != options:
        chooser.options, chooser.visible = options, True


def _make_layout(roots: list[Any], chooser: Select) -> LayoutDOM:
    """Return the plots in rows of three; a single plot fills the page."""
    if len(roots) == 1:
        return roots[0]
    rows = [row(roots[i : i + 3], sizing_mode="stretch_both") for i in range(0, len(roots), 3)]
    return column([chooser, *rows], sizing_mode="stretch_both")
