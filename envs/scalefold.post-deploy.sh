#!/usr/bin/env bash
# Snakemake runs this in a new environment. It installs the checkout's packages as editable, so that
# the environment outlives changes of the code.
set -euo pipefail

[ -f pyproject.toml ] || {
    echo "$PWD: no pyproject.toml: run Snakemake in the root of ScaleFold's repository" >&2
    exit 1
}
python -m pip install --quiet --no-deps --no-build-isolation --editable ./kernels --editable .
