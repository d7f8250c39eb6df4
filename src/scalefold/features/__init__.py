"""From a chain's record, alignment and templates to the tensors that model and losses read.

Read the files in the order of the work:

1. ``contract.py`` names every feature.
2. ``random.py`` makes random numbers from keys; ``sample_random.py`` lists those of a sample.
3. ``selection.py`` selects residues (``crop.py``) and templates (``templates.py``).
4. ``raw_features.py`` selects rows (``msa_rows.py``), and collects all as tensors that can be sent
   to a GPU (``packed_msa.py``).
5. ``msa_features.py`` masks (``masking.py``) and clusters (``msa_clusters.py``) the rows.
6. ``template_features.py`` and ``targets.py`` describe structures, by ``atoms.py``, ``torsions.py``
   and ``rigid_groups.py``.
7. ``pipeline.py`` runs steps 2 to 6 and pads the features by ``padding.py``.

A ``query.py`` is a chain to predict: it has no structure, so its features have no targets.
"""
