"""Arrow shards: schemas, writer, packing of raw data, reader, verification.

Read the files in the order of the data:

- ``schema.py`` has the columns of each file, ``records.py`` what a reader returns. ``codec.py`` and
  ``hit_codec.py`` translate between them; ``writer.py`` and ``shard_file.py`` write and open files.
- ``buckets.py`` says which job packs a chain, ``bucket_count.py`` how many jobs there are.
- ``pack_structures.py``, ``pack_alignments.py`` and ``pack_index.py`` are the stages of packing.
  ``summary.py`` passes facts from one to the next, and ``pack.py`` runs all of them.
- For the index, ``all_buckets.py`` reads the summaries, with ``chain_table.py``;
  ``index_table.py`` makes its rows; ``locate_templates.py`` finds hits.
- ``manifest.py`` lists the files, ``reader.py`` reads samples.
- ``verify.py``, ``inspect.py`` and ``audit.py`` check and show a folder.
"""
