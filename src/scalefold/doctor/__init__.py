"""What training needs of a machine, tried out: GPUs, links, clocks, folders, shards, caches."""

from scalefold.doctor.finding import Finding, verdict

__all__ = ["Finding", "verdict"]
