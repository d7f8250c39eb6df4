"""Arrow shards: schemas, writer, packing of raw data, reader, verification."""
