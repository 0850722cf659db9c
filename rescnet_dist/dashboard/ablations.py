"""The ablations of the paper: what is compared, what was published, and a figure of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rescnet_dist.dashboard.figures import new_figure
from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.formatting import train_suffix
from rescnet_dist.spec import NetworkSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Alotaibi and Wilson, CIFAR-10 test images"
PAPER_PRESET = "cifar10"  # whose settings all ablations of the paper start from
VARIANT_COLORS = ("#2166ac", "#d6604d", "#4d9221", "#762a83", "#b8860b", "#5e5e5e")


@dataclass(frozen=True, slots=True)
class Published:
    """A test accuracy in % that the paper reports after a number of layers, and where it does."""

    layers: int
    accuracy: float
    reference: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One value of the option that is varied, and what the paper reports of it."""

    value: Any
    label: str
    published: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class Ablation:
    """Networks that differ in one option.

    `base` has the options in which all of them differ from the preset of the paper. `form` is the
    label of a value that the paper does not have; without it, there are no other values.
    """

    name: str
    title: str
    option: str
    variants: tuple[Variant, ...]
    base: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None

    def with_values(self, texts: Sequence[str]) -> Ablation:
        """Return the ablation with other values, given as text; raise SpecError for bad ones."""
        if self.form is None:
            raise SpecError(
                f"The ablation {self.name} compares with and without. Leave out --values."
            )
        known = {variant.value: variant for variant in self.variants}
        kind = type(self.variants[0].value)
        try:
            values = list(dict.fromkeys(kind(text) for text in texts))
        except ValueError:
            noun = "whole numbers" if kind is int else "numbers"
            raise SpecError(f"--values {','.join(texts)} are not {noun}, as in 8,16.") from None
        chosen = [known.get(v, Variant(v, self.form.format(v))) for v in values]
        return Ablation(self.name, self.title, self.option, tuple(chosen), self.base, self.form)

    def specs(self, base: NetworkSpec) -> list[NetworkSpec]:
        """Return the network of each variant; raise SpecError if a value is not valid."""
        return [base.replace(**{self.option: variant.value}) for variant in self.variants]

    def run_name(self, variant: Variant) -> str:
        """Return the name of the run of a variant, such as rate-0.4."""
        if self.form is None:
            return f"{self.name}-{'with' if variant.value else 'without'}"
        return f"{self.name}-{variant.value:g}"


_FILTERS, _RATE = "section Number of Filters", "table of section Learning Rate"
ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation(
            "rate",
            "Learning rate and depth",
            "learning_rate",
            (
                Variant(1.0, "α = 1", (Published(208, 87.02, _RATE), Published(348, 86.91, _RATE))),
                Variant(
                    0.4,
                    "α = 0.4",
                    (
                        Published(600, 87.09, _RATE),
                        Published(937, 87.54, _RATE),
                        Published(970, 87.41, _RATE),
                    ),
                ),
            ),
            form="α = {:g}",
        ),
        Ablation(
            "block",
            "Size of pooling blocks",
            "block",
            (
                Variant(8, "8×8 blocks", (Published(100, 86.33, _FILTERS),)),
                Variant(16, "16×16 blocks", (Published(937, 87.54, _RATE),)),
            ),
            form="{0}×{0} blocks",
        ),
        Ablation(
            "filters",
            "Number of filters, 8×8 blocks in the paper",
            "filters",
            (
                Variant(
                    30,
                    "30 filters",
                    (Published(500, 86.33, _FILTERS), Published(781, 86.28, _FILTERS)),
                ),
                Variant(
                    50,
                    "50 filters",
                    (Published(100, 86.33, _FILTERS), Published(127, 86.28, _FILTERS)),
                ),
            ),
            base={"block": 8},
            form="{} filters",
        ),
        Ablation(
            "stacked-lda",
            "With and without stacked-LDA filters (not compared in the paper)",
            "lda_fraction",
            (Variant(0.5, "half PCA, half stacked-LDA"), Variant(0.0, "PCA only")),
            # 50 PCA filters of 3×3 pixels would be more than the 27 directions of a color patch
            base={"first_filter_size": 5},
        ),
        Ablation(
            "compensation",
            "With and without compensation (not compared in the paper)",
            "compensate",
            (Variant(True, "fitted to the errors"), Variant(False, "fitted to the labels")),
        ),
    )
}


def find_ablation(name: str) -> Ablation:
    """Return an ablation by its name; raise SpecError if there is none."""
    if name not in ABLATIONS:
        raise SpecError(f"There is no ablation {name!r}. {suggest_name(name, ABLATIONS)}")
    return ABLATIONS[name]


def ablation_train_suffix(variant: Mapping[str, Any]) -> str:
    """Return the suffix of the training accuracies of a variant of a record.

    Records of earlier releases do not say what these accuracies count.
    """
    return train_suffix(variant.get("copies", 0), variant.get("leave_one_out", False))


def plot_ablation(record: Mapping[str, Any]) -> Figure:
    """Plot the accuracy of each variant by layer, and what the paper reports as points.

    `record` is what `rescnet ablate` writes. Curves are test accuracies, or else validation
    accuracies; training accuracies are dashed. Next to points of the paper, which has hundreds of
    layers, the scale of layers is logarithmic.
    """
    figure = new_figure(7.6, 4.6)
    axes = figure.subplots()
    for number, variant in enumerate(record["variants"]):
        color = VARIANT_COLORS[number % len(VARIANT_COLORS)]
        styles = {record["curve"]: "-"}
        styles.setdefault("train", "--")
        for key, style in styles.items():
            points = [(e["layer"], 100 * e[key]) for e in variant["curve"] if e[key] is not None]
            suffix = ablation_train_suffix(variant) if key == "train" else ""
            label = f"{variant['label']}, {key}{suffix}"
            marker = "o" if len(points) == 1 else ""  # a line of one point is invisible
            axes.plot(
                *zip(*points, strict=True), style, marker=marker, color=color, label=label, lw=1.6
            )
        if variant["published"]:
            points = [(p["layers"], p["accuracy"]) for p in variant["published"]]
            axes.plot(
                *zip(*points, strict=True),
                ls="",
                marker="D",
                ms=6,
                color=color,
                markeredgecolor="black",
                label=f"{variant['label']}, paper (CIFAR-10)",
            )
    axes.set(xlabel="layers", ylabel="accuracy (%)")
    axes.set_title(f"{record['title']}\nrun on {record['data']}", fontsize=10)
    axes.locator_params(axis="x", integer=True)
    if any(variant["published"] for variant in record["variants"]):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.annotate(
            f"◆ {PAPER}", (0, -0.17), xycoords="axes fraction", fontsize=8, annotation_clip=False
        )
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure
