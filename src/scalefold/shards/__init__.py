"""Arrow shards: schemas, atomic writer, packing of raw data, reader, verification."""
