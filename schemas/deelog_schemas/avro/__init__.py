"""Keys and envelopes in Avro: with a schema registry in Confluent's wire format, without one with pinned schemas.

- `schema`: Avro schemas as Connect's AvroData derives them from `deelog_schemas.connect`
- `codec`: records to bytes and back
- `converter`: from a configuration to its codec
- `pinned`: the `.avsc` files of every release, below `released/`
"""
