#!/usr/bin/env bash
# On a machine with NVIDIA GPUs: does the image reach them, and does the workflow train on one?
#
#   containers/check.sh IMAGE
#
# IMAGE   a SIF file or a docker:// reference (Apptainer), or the name of an image of Docker or Podman
set -euo pipefail
image=${1:?name an image: containers/check.sh scalefold.sif}
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
fail() {
    echo "container check: $*" >&2
    exit 1
}

command -v nvidia-smi > /dev/null || fail "no nvidia-smi: this machine has no NVIDIA driver"
echo "== this machine"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

case $image in
    *.sif | *://*)
        command -v apptainer > /dev/null || fail "no apptainer here to run $image"
        [[ $image == *://* || -f $image ]] || fail "$image: no such file"
        inside=(apptainer exec --nv --bind "$repository:/source:ro" "$image")
        ;;
    *)
        if command -v docker > /dev/null; then
            inside=(docker run --rm --init --gpus all)
        elif command -v podman > /dev/null; then
            inside=(podman run --rm --init --device nvidia.com/gpu=all --security-opt label=disable)
        else
            fail "neither docker nor podman here to run $image"
        fi
        # Processes of the loader share memory; 64 MB, Docker's default, are too few.
        inside+=(--ipc host --volume "$repository:/source:ro" "$image")
        ;;
esac

echo "== inside the image"
"${inside[@]}" nvidia-smi --list-gpus || fail "the driver does not reach into the image"
"${inside[@]}" python /source/containers/gpu_check.py
"${inside[@]}" bash /source/containers/smoke_test.sh /source gpu
echo "container check: passed"
