"""Triton kernels of ScaleFold, one folder an op. Imports torch and triton only.

``scalefold.ops`` is the only importer of this package. It holds no kernel yet: every op runs its
torch reference.
"""
