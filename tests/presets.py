"""Height, width and channels of the images that each preset is for."""

IMAGES = {
    "digits": (28, 28, 1),
    "mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "tiny-imagenet": (64, 64, 3),
    **dict.fromkeys(
        ("pcanet", "pcanet+", "ldanet", "dctnet", "randnet", "ccanet", "multilayer-pcanet"),
        (32, 32, 3),
    ),
}
