"""Raw files: structures, alignments and template hits, read and fetched; the list of chains."""
