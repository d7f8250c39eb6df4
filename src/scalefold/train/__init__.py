"""Training: `assemble` builds a run's parts, `loop` starts the run, `run` makes its steps."""
