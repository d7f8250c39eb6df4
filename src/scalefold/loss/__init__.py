"""Losses of AlphaFold2 (Jumper et al. 2021, Suppl. sec. 1.9): one file a term, `total` sums them.

Terms give one value a sample. Only the total is averaged over the batch, so a batch is exactly the
mean of its samples. A term whose mask is empty is 0. Terms compute in the type of their inputs;
`total` raises them to float32 and holds autocast off.
"""
