"""Arrow shards of facts: columns, writer, manifest, readers, packing, conversion. Knows no weight, loss or model."""
