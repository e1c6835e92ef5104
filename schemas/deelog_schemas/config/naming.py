"""`topic.naming.strategy`: the user's function that names the change topic of a cache.

Weighed in docs/decisions.md, "Names of topics by code".
"""

from __future__ import annotations

import importlib

from deelog_schemas.errors import ConfigError, FieldError


def named_by(strategy: str, prefix: str, delimiter: str, cache: str) -> str:
    """The name of the change topic, from the user's function; `strategy` is its dotted path.

    Raises `ConfigError` where there is no such function, where it fails, and where it does not return text.
    """
    module, _, name = strategy.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        problem = f"names nothing that can be imported ({error}): it must be on the path of every process"
        raise ConfigError([FieldError("topic.naming.strategy", problem, repr(strategy))]) from error
    try:
        topic = function(prefix, delimiter, cache)
    except Exception as error:
        problem = f"failed for cache {cache!r}: {error!r}"
        raise ConfigError([FieldError("topic.naming.strategy", problem, repr(strategy))]) from error
    if not isinstance(topic, str) or not topic:
        problem = f"must give the name of a topic for cache {cache!r}, and gave {topic!r}"
        raise ConfigError([FieldError("topic.naming.strategy", problem, repr(strategy))])
    return topic
