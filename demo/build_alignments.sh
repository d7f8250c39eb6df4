#!/usr/bin/env bash
# Search the demo's chains again: alignments, template hits, sequence clusters.
#
# Usage: bash demo/build_alignments.sh WORK_FOLDER      (from the repository's root, about 2 minutes)
#
# Debian 12 packages: hmmer hhsuite hhsuite-data mmseqs2 ncbi-blast+; and metastudent-data, unpacked
# below WORK_FOLDER/metastudent (apt-get download metastudent-data; dpkg-deb -x *.deb metastudent).
# It carries the part of UniProtKB/Swiss-Prot (January 2014) that has Gene Ontology terms.
# Also needed: a Python in which scalefold is installed ($PYTHON, default python3).
# Writes demo/mirror/openproteinset/pdb/<chain>/{a3m/swissprot_hits.a3m,hhr/pdb70_hits.hhr} and
# the cluster_id column of demo/chains.tsv.
set -euo pipefail

work=$(realpath "$1")
demo=$(realpath demo)
python=${PYTHON:-python3}
blast=$work/metastudent/usr/share/metastudent-data/dataset_201401
# Debian's cstranslate is not on PATH; the plain build runs on every processor.
cstranslate=/usr/libexec/hhsuite/cstranslate-sse3
hh_data=/usr/lib/hhsuite/data
reformat=/usr/share/hhsuite/scripts/reformat.pl

cd "$work"
rm -rf fasta sto a3m db hhr
mkdir -p fasta sto a3m db/a3m db/hhm hhr

# 1. The search set: every sequence of the three ontologies' BLAST databases, once.
if [[ ! -s swissprot.fasta ]]; then
    for ontology in BPO CCO MFO; do
        blastdbcmd -db "$blast/$ontology/goasp.fasta" -entry all
    done | awk '
        /^>/ { split(substr($1, 2), name, "|"); keep = !seen[name[1]]++; if (keep) print ">" name[1]; next }
        keep
    ' > swissprot.fasta
fi

# 2. The chains' sequences, as scalefold reads them.
"$python" - "$demo" fasta <<'PYTHON'
import csv
import sys
from pathlib import Path

from scalefold.raw.mmcif import read_entry

demo, out = map(Path, sys.argv[1:])
for row in csv.DictReader((demo / "chains.tsv").open(), delimiter="\t"):
    key = row["chain_key"]
    entry = key.split("_")[0]
    folder = demo / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF" / entry[-3:-1]
    sequence = read_entry(folder / f"{entry}.cif.gz").chain(key).sequence
    (out / f"{key}.fasta").write_text(f">query\n{sequence}\n")
PYTHON

# 3. Alignments: jackhmmer with the thresholds and the single iteration of AlphaFold2's pipeline.
for fasta in fasta/*.fasta; do
    key=$(basename "$fasta" .fasta)
    jackhmmer -o /dev/null -A "sto/$key.sto" --noali --F1 0.0005 --F2 5e-05 --F3 5e-07 \
        --incE 0.0001 -E 0.0001 --cpu 2 -N 1 --seed 42 "$fasta" swissprot.fasta
    "$reformat" sto a3m "sto/$key.sto" "a3m/$key.a3m" -M first -v 0
done

# 4. A template database of the chains themselves (the names in a3m, hhm and cs219 must agree).
for alignment in a3m/*.a3m; do
    key=$(basename "$alignment" .a3m)
    name="$(tr '[:lower:]' '[:upper:]' <<< "${key%_*}")_${key##*_}"
    sed "1s/.*/>$name/" "$alignment" > "db/a3m/$name"
    (cd db && hhmake -v 0 -i "a3m/$name" -o "hhm/$name" -M a3m)
done
(
    cd db
    ffindex_build -s demo_a3m.ffdata demo_a3m.ffindex a3m
    ffindex_build -s demo_hhm.ffdata demo_hhm.ffindex hhm
    "$cstranslate" -f -x 0.3 -c 4 -b -I a3m -i demo_a3m -o demo_cs219 \
        -A "$hh_data/cs219.lib" -D "$hh_data/context_data.lib"
)

# 5. Template hits of at least 20 % probability (by default hhsearch lists ten however weak they are).
for alignment in a3m/*.a3m; do
    key=$(basename "$alignment" .a3m)
    hhsearch -v 0 -cpu 2 -maxseq 1000000 -p 20 -z 1 -b 1 -i "$alignment" -d db/demo -o "hhr/$key.hhr"
done

# 6. Into the mirror; clusters at 40 % identity into chains.tsv.
for fasta in fasta/*.fasta; do sed "1s/.*/>$(basename "$fasta" .fasta)/" "$fasta"; done > chains.fasta
mmseqs easy-cluster chains.fasta clusters tmp --min-seq-id 0.4 -c 0.8 --threads 2 -v 1
awk -F'\t' -v OFS='\t' '
    NR == FNR { cluster[$2] = $1; next }
    FNR > 1 { $3 = cluster[$1] }
    { print }
' clusters_cluster.tsv "$demo/chains.tsv" > chains.tsv
while IFS=$'\t' read -r key split _; do
    [[ $split == chain_key || $split == split || $split == template ]] && continue
    mkdir -p "$demo/mirror/openproteinset/pdb/$key/"{a3m,hhr}
    cp "a3m/$key.a3m" "$demo/mirror/openproteinset/pdb/$key/a3m/swissprot_hits.a3m"
    cp "hhr/$key.hhr" "$demo/mirror/openproteinset/pdb/$key/hhr/pdb70_hits.hhr"
done < chains.tsv
cp chains.tsv "$demo/chains.tsv"
