"""The mathematics of ResCNet: arrays in, arrays out; no dask, no zarr, no files."""

from rescnet_dist.kernels.arrays import to_host
from rescnet_dist.kernels.augment import Augmentation, augment_images
from rescnet_dist.kernels.backend import Backend
from rescnet_dist.kernels.binary_hash import binary_hash_features
from rescnet_dist.kernels.calibration import LossCurve, softmax
from rescnet_dist.kernels.cg import CovarianceProduct, Iterate, record_columns
from rescnet_dist.kernels.class_sums import ClassSums
from rescnet_dist.kernels.contrast import global_contrast, local_contrast
from rescnet_dist.kernels.convolution import convolve, convolve_each, min_max_scale, normalize
from rescnet_dist.kernels.covariance_root import covariance_root_features
from rescnet_dist.kernels.cpu.loading import prepare
from rescnet_dist.kernels.cpu.roots import newton_roots
from rescnet_dist.kernels.discriminant import (
    FeatureMoments,
    Whitening,
    one_vs_rest_lda,
    regression_to_lda,
    ridge_regression,
)
from rescnet_dist.kernels.filters import (
    Draws,
    PatchSample,
    pca_filters,
    sample_patches,
    stacked_lda_draws,
    stacked_lda_filters,
)
from rescnet_dist.kernels.first_order import first_order_features
from rescnet_dist.kernels.gpu_tiles import check_gpu_holds
from rescnet_dist.kernels.hashing import hash_keys, uniforms
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.leverage import leave_one_out, probe_signs
from rescnet_dist.kernels.mixture import mixture_weights
from rescnet_dist.kernels.patches import (
    InputSums,
    PatchMoments,
    center_patches,
    patch_moments,
    patch_scatter,
)
from rescnet_dist.kernels.pooling import feature_count, second_order_features
from rescnet_dist.kernels.residual import one_hot, probabilities, residual_labels
from rescnet_dist.kernels.subset import rank_in_class, spread_evenly
from rescnet_dist.kernels.tiles import (
    Standardizer,
    TileScatter,
    factor_tile,
    feature_blocks,
    tiled_whitening,
)

__all__ = [
    "Augmentation",
    "Backend",
    "ClassSums",
    "CovarianceProduct",
    "Draws",
    "FeatureMoments",
    "InputSums",
    "Iterate",
    "LayerInput",
    "LossCurve",
    "PatchMoments",
    "PatchSample",
    "Standardizer",
    "TileScatter",
    "Whitening",
    "augment_images",
    "binary_hash_features",
    "center_patches",
    "check_gpu_holds",
    "convolve",
    "convolve_each",
    "covariance_root_features",
    "factor_tile",
    "feature_blocks",
    "feature_count",
    "first_order_features",
    "global_contrast",
    "hash_keys",
    "leave_one_out",
    "local_contrast",
    "min_max_scale",
    "mixture_weights",
    "newton_roots",
    "normalize",
    "one_hot",
    "one_vs_rest_lda",
    "patch_moments",
    "patch_scatter",
    "pca_filters",
    "prepare",
    "probabilities",
    "probe_signs",
    "rank_in_class",
    "record_columns",
    "regression_to_lda",
    "residual_labels",
    "ridge_regression",
    "sample_patches",
    "second_order_features",
    "softmax",
    "spread_evenly",
    "stacked_lda_draws",
    "stacked_lda_filters",
    "tiled_whitening",
    "to_host",
    "uniforms",
]
