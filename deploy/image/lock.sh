#!/bin/sh
# Write constraints.txt (all packages of the image), gpu.txt (those that the GPU image has too) and build.txt
# (those that build the wheel), with versions and hashes of all files:
#   sh deploy/image/lock.sh [--upgrade | --upgrade-package NAME]
# Versions in the files are kept unless they are upgraded. Needs uv (`pip install uv`).
set -eu
cd "$(dirname "$0")/../.."

lock() { # FILE, options and inputs of uv
    file=deploy/image/$1
    shift
    set -- --quiet --generate-hashes --no-annotate --only-binary :all: --python-version 3.11.12 \
        --custom-compile-command "sh deploy/image/lock.sh" "$@"
    uv pip compile --python-platform x86_64-manylinux_2_28 --output-file "$file" "$@"
    # The packages must be the same on Arm.
    uv pip compile --python-platform aarch64-manylinux_2_28 --constraint "$file" "$@" | diff "$file" -
}

lock constraints.txt "$@" --extra dashboard --extra fast-png --extra gateway --extra k8s --extra obstore \
    --extra prometheus --extra s3 pyproject.toml deploy/image/packages.in
lock gpu.txt "$@" --constraint deploy/image/constraints.txt --no-emit-package numpy deploy/image/gpu.in
lock build.txt "$@" deploy/image/build.in
