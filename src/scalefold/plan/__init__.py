"""What training takes, before it begins: a summary of a run, and a plan for GPUs not yet had."""
