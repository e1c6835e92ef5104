"""What every reader and writer of deelog's records agrees on: header, control records, envelope, digest, fold.

This package is pure: it opens no socket, starts no thread, and reads no clock. It is what the connector and the
Spark job share, since neither may import the other; only `deelog_schemas.config.sources` reads a file, the
configuration that both are given.
"""

__version__ = "0.1.0"
