"""Training: `assemble` builds a run's parts, `start` begins the run, `run` makes its steps."""
