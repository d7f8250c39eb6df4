#!/usr/bin/env bash
# Steps of the image's installation, the same in Containerfile and scalefold.def:
#
#   install.sh STEP...
#
# tools          programs, a compiler, and what NCCL finds InfiniBand by
# dependencies   pinned Python packages, into /opt/scalefold
# wheels         scalefold and scalefold-kernels of this folder, as wheels in /opt/scalefold/wheel
# scalefold      these wheels, into /opt/scalefold
# kernels        kernels of the lists in /opt/scalefold/lists, compiled, into /opt/scalefold/kernels
#
# Run as root in the folder of pyproject.toml, on Ubuntu 24.04, Debian 12, or newer.
set -euo pipefail
pip=/opt/scalefold/bin/pip

packages() {
    # apt changes to a user of its own, which a build without root does not have.
    apt-get -o APT::Sandbox::User=root update
    apt-get -o APT::Sandbox::User=root install -y --no-install-recommends "$@"
    rm -rf /var/lib/apt/lists/*
}

tools() {
    # gcc and Python's headers: Triton compiles the launchers of its kernels where it runs.
    # libibverbs and its providers: NCCL takes sockets without a word if they are not there.
    packages ca-certificates gcc ibverbs-providers libc6-dev libibverbs1 libpython3-dev python3 \
        hhsuite hhsuite-data hmmer kalign mmseqs2 rsync
    # Six builds of each program are 450 MB. HH-suite's launcher takes the best one that is there.
    rm /usr/libexec/hhsuite/*-ssse3 /usr/libexec/hhsuite/*-sse4.1 /usr/libexec/hhsuite/*-avx
}

dependencies() {
    packages python3 python3-venv
    python3 -m venv /opt/scalefold
    python3 - > /tmp/requirements.txt <<'END'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
others = [line for line in project["dependencies"] if not line.startswith("scalefold-kernels")]
print(*others, *project["optional-dependencies"]["workflow"], sep="\n")
END
    "$pip" install --no-cache-dir -c constraints.txt -r /tmp/requirements.txt
    rm /tmp/requirements.txt
}

wheels() {
    # No checkout is here to tell the wheel its commit; without REVISION that of an archive stays.
    [ "${REVISION:-unknown}" = unknown ] || echo "$REVISION" > src/scalefold/commit.txt
    # setuptools is there: torch brings it, in its pinned version.
    "$pip" wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
        --wheel-dir /opt/scalefold/wheel ./kernels .
}

scalefold() {
    "$pip" install --no-cache-dir --no-index --no-deps /opt/scalefold/wheel/*.whl
}

kernels() {
    # Without CUDA torch brings no Triton, and the image no kernels.
    /opt/scalefold/bin/python -c 'import triton' 2> /dev/null || return 0
    local list name made=/opt/scalefold/kernels
    shopt -s nullglob
    for list in /opt/scalefold/lists/cuda-*.jsonl.gz; do
        name=$(basename "$list" .jsonl.gz)
        zcat "$list" | TRITON_CACHE_DIR=$made /opt/scalefold/bin/python -m scalefold.engine.compile_ahead \
            "{\"backend\": \"cuda\", \"arch\": ${name#cuda-}, \"warp_size\": 32}" "$(nproc)" \
            triton.backends.nvidia.driver:CudaLauncher
        echo "$(zcat "$list" | wc -l) kernels asked for in $list, compiled now $(find "$made/scalefold" -type f | wc -l)"
    done
}

for step in "$@"; do
    "$step"
done
