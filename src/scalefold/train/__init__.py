"""Training: `assemble` builds a run's parts, `loop` runs them, `checkpoint` keeps them."""
