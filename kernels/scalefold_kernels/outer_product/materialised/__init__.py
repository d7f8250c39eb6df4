"""Many sequences: the outer product in memory."""
