#!/usr/bin/env bash
# Run inside the image: is everything there, and does the workflow go from raw files to a report?
#
#   smoke_test.sh REPOSITORY [gpu]
#
# REPOSITORY may be read-only. With `gpu` it is an error if the workflow ran on the CPU.
set -euo pipefail
source=$(realpath "$1")
wanted=${2:-any}
fail() {
    echo "smoke test: $*" >&2
    exit 1
}

[ ! -w /opt/scalefold/bin ] || [ -n "${APPTAINER_CONTAINER:-}" ] || fail "the image runs as root"
[ "$(command -v scalefold)" = /opt/scalefold/bin/scalefold ] || fail "another scalefold comes first"
scalefold --version

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp -r "$source"/{Snakefile,config.yaml,workflow,envs,demo,containers} .
cp -P "$source/local" .

alignment=demo/mirror/openproteinset/pdb/5pti_A/a3m/swissprot_hits.a3m
head -n 2 "$alignment" > query.fasta
head -n 4 "$alignment" | sed '/^>/!s/[a-z-]//g' > pair.fasta
hhmake -v 1 -i "$alignment" -o 5pti.hhm
hhblits_omp -h > /dev/null
cstranslate=(/usr/libexec/hhsuite/cstranslate-*)
[ -x "${cstranslate[0]}" ] || fail "no cstranslate in /usr/libexec/hhsuite"
jackhmmer -N 1 -o jackhmmer.txt query.fasta pair.fasta
mmseqs easy-search query.fasta pair.fasta hits.m8 mmseqs -v 1
kalign -i pair.fasta -o kalign.fasta > /dev/null
for result in 5pti.hhm jackhmmer.txt hits.m8 kalign.fasta; do
    [ -s "$result" ] || fail "$result is empty"
done
echo "HH-suite, HMMER, MMseqs2 and Kalign work"

# What Triton does with the launcher of each kernel.
echo '#include <Python.h>' > launcher.c
gcc -shared -fPIC -I"$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    launcher.c -o launcher.so || fail "extensions of Python cannot be compiled"

# What NCCL loads where there is InfiniBand.
python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1"); ctypes.CDLL("libmlx5.so.1")'

snakemake --profile local --cores 2 --nocolor \
    --configfile demo/config.yaml containers/smoke_test.yaml > workflow.log 2>&1 \
    || { cat workflow.log; fail "the workflow failed"; }
run=results/smoke_test
[ -s "$run/report.html" ] || fail "no report"
weights=$(find "$run" -path '*/step-00000002/averaged.pt')
[ -s "$weights" ] || fail "no weights"
evaluation=$(find "$run" -name step-00000002.json)
ran_on=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["device"])' "$evaluation")
[ "$wanted" != gpu ] || [ "$ran_on" != CPU ] || fail "the workflow ran on the CPU, not on a GPU"
echo "the workflow ran from raw files to the report, on $ran_on"
