"""The list of chains: from what is known of them to splits without leaks.

Read the files in the order of the work, which ``make.py`` runs:

1. ``sources.py`` tells what a user's files are; ``tables.py``, ``folders.py``, ``packed.py`` and
   ``targets.py`` read them.
2. ``candidates.py`` joins what they say of each chain.
3. ``clusters.py`` clusters the sequences.
4. ``splits.py`` chooses training and validation chains, and ``summary.py`` shows them.
"""
