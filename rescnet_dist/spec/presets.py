"""Options of the named networks: those of the paper, and the PCANet family.

The networks of the family are for color images of 32×32 pixels. `notebooks/how-it-works/family.md`
says what is known of each publication, and what was chosen where its description is open.
"""

from __future__ import annotations

from typing import Any

# PCANet-2 for CIFAR-10 (Chan et al., 2015): 40 filters of 5×5 pixels, then 8 on each map. Filters
# see patches without their mean, and maps are not normalized.
_PCANET: dict[str, Any] = {
    "filters": (40, 8),
    "filter_size": 5,
    "first_filter_size": 5,
    "bank": "pca+each+center",
    "minmax": "images",
    "concatenate": False,
    "features": {"name": "binary-hash", "bits": 8, "block": 8, "stride": 4, "levels": (4, 2, 1)},
    "head": {"name": "regress", "ridge": 1.0, "solver": "cg"},
    "heads": "last",
    "max_layers": 2,
    "stop_at_zero_error": False,
}

PRESET_OPTIONS: dict[str, dict[str, Any]] = {
    "digits": {
        "filters": 16,
        "first_filter_size": 7,
        "block": 7,
        "head": "regress",
        "ridge": 0.3,
        "learning_rate": 0.7,
        "max_layers": 4,
        "stop_at_zero_error": False,
    },
    "mnist": {
        "filters": 60,
        "first_filter_size": 13,
        "lda_fraction": 0.0,
        "block": 7,
        "probability": "softmax",
        "ridge": 0.001,
        "max_layers": 231,
    },
    "cifar10": {"stride": 1, "learning_rate": 0.4, "max_layers": 937},
    "cifar100": {"decay": 0.1, "rate_floor": 0.387, "max_layers": 436},
    "tiny-imagenet": {
        "filters": 40,
        "block": 32,
        "stride": 8,
        "decay": 0.1,
        "rate_floor": 0.478,
        "max_layers": 512,
    },
    "pcanet": _PCANET,
    # Filters see all maps, as in a CNN, so that maps do not multiply.
    "pcanet+": _PCANET | {"filters": 40, "bank": "pca+center"},
    "ldanet": _PCANET | {"bank": "lda+each+center"},
    "dctnet": _PCANET | {"bank": "dct+each+center"},
    "randnet": _PCANET | {"bank": "gaussian+each+center"},
    # Two towers of 20 filters, then 8 on each map: as many maps as PCANet.
    "ccanet": _PCANET | {"filters": (40, 16), "bank": "cca+each+center,cca@contrast+each+center"},
    "multilayer-pcanet": {
        "filters": 50,
        "first_filter_size": 5,
        "bank": "pca",
        "concatenate": False,
        "block": 8,
        "stride": 4,
        "head": {"name": "classify", "compensate": False, "ridge": 1.0, "sigma": 2.0},
        "max_layers": 9,
        "stop_at_zero_error": False,
    },
}
