"""What a layer is: views, filter learners, feature extractors, heads, and the forward step."""

from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.bank import BankPart, Tower
from rescnet_dist.model.calibration import Calibration
from rescnet_dist.model.components import Component, FeatureExtractor, FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.forward import (
    State,
    TrainingRows,
    advance,
    forward,
    initial_state,
    replay,
)
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.growth import (
    GrowingLayer,
    check_features,
    fit_bank,
    fit_first_bank,
    fit_head,
    fit_image_scale,
)
from rescnet_dist.model.head import Head
from rescnet_dist.model.layer import Bank, FittedHead, ImageScale, Layer
from rescnet_dist.model.observation import NoStatistics, Observation, Statistics
from rescnet_dist.model.pixels import layer_pixels, put_views, raw_pixels
from rescnet_dist.model.registry import FEATURES, FILTERS, HEADS, VIEWS, Registry
from rescnet_dist.model.solver import ConjugateGradients
from rescnet_dist.model.statistics import BankStatistics, GrownChunk, LayerStatistics, Tally
from rescnet_dist.model.view import View

__all__ = [
    "FEATURES",
    "FILTERS",
    "HEADS",
    "VIEWS",
    "Architecture",
    "Bank",
    "BankPart",
    "BankStatistics",
    "Calibration",
    "Component",
    "ConjugateGradients",
    "FeatureExtractor",
    "FilterGroup",
    "FilterLearner",
    "FittedHead",
    "GrowingLayer",
    "GrownChunk",
    "Head",
    "ImageScale",
    "Layer",
    "LayerStatistics",
    "NoStatistics",
    "Observation",
    "OnnxGraph",
    "Registry",
    "State",
    "Statistics",
    "Tally",
    "Tower",
    "TrainingRows",
    "View",
    "advance",
    "check_features",
    "fit_bank",
    "fit_first_bank",
    "fit_head",
    "fit_image_scale",
    "forward",
    "initial_state",
    "layer_pixels",
    "put_views",
    "raw_pixels",
    "replay",
]
