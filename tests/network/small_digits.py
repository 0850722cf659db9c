"""The network and the class names of the small classifier of digits."""

from rescnet_dist import NetworkSpec

SPEC = NetworkSpec(
    filters=4, block=5, stride=2, head="regress", ridge=0.3, learning_rate=0.5, max_layers=2
)
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
