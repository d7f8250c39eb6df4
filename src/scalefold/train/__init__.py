"""Training: `start` begins it, `assemble` builds what `step` needs, `loop` repeats `step`."""
