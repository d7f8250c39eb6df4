"""Search of alignments and template hits: HH-suite, HMMER and MMseqs2, and HH-suite's databases."""
