"""Download of raw files: structures, alignments and template hits of a list of chains.

``run.py`` fetches the files that ``chain_files.py`` names, each by ``mirrors.py``, which asks one
mirror after another: by ``download.py`` over HTTP, by ``rsync.py``, or in a folder. ``fetched.py``
is the table of what came. ``plan.py`` asks for sizes before, ``on_mirrors.py`` looks what is there.
"""
