"""The configuration of all of deelog: one flat map, one file, read by every component.

It is in this package because the connector, the interceptors and the Spark job read the same file, and the Spark job
may not import the connector. It needs only the standard library (and `javaproperties` for a `.properties` file),
because it is sent to Spark as a zip of pure Python.

    config = load("node1.properties")
    config["max.batch.size"]        # 8192, typed
    config.overrides("producer")    # settings for librdkafka, references resolved
    config.topics.changes           # the names of the topics
"""

from __future__ import annotations

from deelog_schemas.config.config import Config, Given, config_of, load, parse
from deelog_schemas.config.field import Field, Importance, Role, Type
from deelog_schemas.config.fields import FIELDS, GROUPS
from deelog_schemas.config.secrets import MASK, Masked, Secret
from deelog_schemas.config.shapes import split_address
from deelog_schemas.config.transforms import Declared, refused_from_rest
from deelog_schemas.errors import ConfigError, FieldError

__all__ = [
    "FIELDS",
    "GROUPS",
    "MASK",
    "Config",
    "ConfigError",
    "Declared",
    "Field",
    "FieldError",
    "Given",
    "Importance",
    "Masked",
    "Role",
    "Secret",
    "Type",
    "config_of",
    "load",
    "parse",
    "refused_from_rest",
    "split_address",
]
