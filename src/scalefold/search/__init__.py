"""Search of alignments and template hits: HH-suite, HMMER and MMseqs2, and HH-suite's databases.

Read the files from the outside in:

1. ``unaligned.py`` says which sequences need a search, ``search.py`` searches them.
2. ``one_sequence.py`` goes through the steps of one sequence, or takes ``given_alignments.py``;
   ``databases.py`` notices a renewed database.
3. ``steps.py`` runs one step by ``hhsuite.py``, ``hmmer.py``, ``hmmer_in_process.py`` or
   ``mmseqs.py``. ``process.py`` runs a program, which ``binaries.py`` finds.

``build_database.py`` builds databases of HH-suite. ``a3m.py``, ``hhm.py`` and ``ffindex.py`` are
formats.
"""
