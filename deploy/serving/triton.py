"""Write a network as a model repository of Triton: the ONNX file, and its configuration.

python deploy/serving/triton.py RUN models
"""

from __future__ import annotations

import argparse
import os

from rescnet_dist.network import BaseNetwork, load_network

MODEL_NAME = "rescnet"
MAX_BATCH_IMAGES = 64
MAX_QUEUE_DELAY_MICROSECONDS = 2000  # for other requests to join a batch
CONFIGURATION = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "images" data_type: {input_type} dims: [ {height}, {width}, {channels} ] }} ]
output [
  {{ name: "label" data_type: {label_type} dims: [ 1 ] reshape: {{ shape: [ ] }} }},
  {{ name: "probabilities" data_type: TYPE_FP32 dims: [ {classes} ] }},
  {{ name: "scores" data_type: TYPE_FP32 dims: [ {classes} ] }}
]
dynamic_batching {{ max_queue_delay_microseconds: {delay} }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def write_repository(network: BaseNetwork, folder: str, dtype: str = "float32") -> None:
    """Write FOLDER/rescnet/config.pbtxt and FOLDER/rescnet/1/model.onnx."""
    version = os.path.join(folder, MODEL_NAME, "1")
    os.makedirs(version, exist_ok=True)
    network.to_onnx(os.path.join(version, "model.onnx"), dtype=dtype)
    height, width, channels = network.image_shape
    text = CONFIGURATION.format(
        name=MODEL_NAME,
        batch=MAX_BATCH_IMAGES,
        input_type="TYPE_UINT8" if dtype == "uint8" else "TYPE_FP32",
        height=height,
        width=width,
        channels=channels,
        label_type="TYPE_INT64" if network.classes.dtype.kind in "iub" else "TYPE_STRING",
        classes=len(network.classes),
        delay=MAX_QUEUE_DELAY_MICROSECONDS,
    )
    with open(os.path.join(folder, MODEL_NAME, "config.pbtxt"), "w") as file:
        file.write(text)


def main() -> None:
    """Read the arguments, and write the repository."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="URL of a run or a saved network")
    parser.add_argument("folder", help="folder of the model repository")
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    arguments = parser.parse_args()
    write_repository(load_network(arguments.run), arguments.folder, arguments.dtype)


if __name__ == "__main__":
    main()
