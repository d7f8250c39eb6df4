"""Raw files, read: structures, alignments and template hits; the list of chains.

Read the files in the order of the data:

- ``chain_key.py`` and ``raw_folder.py`` say what chains are called and where their files are;
  ``chains.py`` reads the list of chains, ``rejected.py`` the table of those that are set aside.
- ``mmcif.py`` reads structures: ``mmcif_facts.py`` what a file states, ``atom_site.py`` its atoms.
  ``own_structures.py`` completes files of programs, ``outline.py`` reads no atoms.
- ``a3m.py`` reads alignments as an ``alignment.py``.
- ``hhr.py`` reads template hits, and ``templates.py`` finds them in structures.
- ``fasta.py`` reads sequences to predict or search.
- ``alphafold_features.py`` and ``openfold_database.py`` convert alignments of other codes.
"""
