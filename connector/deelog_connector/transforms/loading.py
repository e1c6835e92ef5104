"""Makes transforms from the configuration, or reports all errors in it.

Naming a class runs the user's code. That is intended for a file on the node's own disk; a configuration from REST is
checked first (`deelog_schemas.config.refused_from_rest`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any, NamedTuple, TypeVar

from deelog_connector.transforms.record import Predicate, Transform
from deelog_schemas.config import Config, ConfigError, Declared, FieldError, Secret, foreign
from deelog_schemas.config.field import REQUIRED, Field, Refused
from deelog_schemas.config.secrets import shown

T = TypeVar("T", Transform, Predicate)


class Step(NamedTuple):
    """A transform of the chain. It applies where the result of `predicate`, if any, is not `negate`."""

    alias: str
    name: str
    """As configured: the dotted path of its class."""
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False


def steps_of(config: Config) -> tuple[Step, ...]:
    """The transforms in order. Raises `ConfigError` with all errors: imports, types, options."""
    errors: list[FieldError] = []
    predicates = {
        alias: _made(config, each, Predicate, errors)  # type: ignore[type-abstract]
        for alias, each in config.declared("predicates").items()
    }
    steps = []
    for alias, each in config.declared("transforms").items():
        transform = _made(config, each, Transform, errors)  # type: ignore[type-abstract]
        if transform is None:
            continue
        if transform.NEEDS_PREDICATE and each.predicate is None:
            problem = f"is required: {each.type} without one takes every record"
            errors.append(FieldError(f"{each.prefix}predicate", problem))
        predicate = predicates.get(each.predicate) if each.predicate is not None else None
        steps.append(Step(alias, each.type, transform, predicate, each.negate))
    if errors:
        raise ConfigError(errors)
    return tuple(steps)


def _made(config: Config, declared: Declared, base: type[T], errors: list[FieldError]) -> T | None:
    name, value = f"{declared.prefix}type", repr(declared.type)
    try:
        class_ = _imported(declared.type, base)
    except Refused as error:
        errors.append(FieldError(name, str(error), value))
        return None
    wrong, options = _options(config, declared, class_.OPTIONS)
    errors += wrong
    if wrong:
        return None
    try:
        return class_(options)
    except ValueError as error:
        errors.append(FieldError(name, f"does not take its options: {error}", value))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; reported with the other errors
        errors.append(FieldError(name, f"cannot be made: {type(error).__name__}: {error}", value))
    return None


def _imported(path: str, base: type[T]) -> type[T]:
    module_name, colon, name = path.rpartition(":")
    if not colon:
        module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if why := foreign.java_class(path):
            raise Refused(why) from None
        where = "install it, or add its folder to PYTHONPATH"
        raise Refused(f"cannot be imported: there is no module {error.name}; {where}") from None
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        raise Refused(f"cannot be imported: {module_name} raised {type(error).__name__}: {error}") from None
    class_ = getattr(module, name, None)
    classes = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, base)]
    if class_ is None:
        nearest = difflib.get_close_matches(name, classes, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise Refused(f"cannot be imported: {module_name} has no {name}{hint}")
    kind = f"{base.__module__}.{base.__name__}"
    if not inspect.isclass(class_) or not issubclass(class_, base):
        raise Refused(f"must be a subclass of {kind}")
    if inspect.isabstract(class_):
        lacking = ", ".join(sorted(class_.__abstractmethods__))
        raise Refused(f"must define what {kind} leaves open: {lacking}")
    return class_


def _options(config: Config, declared: Declared, known: tuple[Field, ...]) -> tuple[list[FieldError], dict[str, Any]]:
    fields = {field.name: field for field in known}
    errors, values = [], {name: field.default for name, field in fields.items()}
    for name in declared.options:
        full = declared.prefix + name
        if name not in fields:
            nearest = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
            suggested = declared.prefix + nearest[0] if nearest else None
            errors.append(FieldError(full, f"is no option of {declared.type}", None, suggested))
            continue
        text = config.secret(full)
        assert text is not None  # it was given
        try:
            value = fields[name].parse(text)
            values[name] = value.reveal() if isinstance(value, Secret) else value
        except Refused as error:
            errors.append(FieldError(full, str(error), shown(full, config.raw[full])))
    for name, value in values.items():
        if value is REQUIRED and name not in declared.options:
            errors.append(FieldError(declared.prefix + name, f"is required; {fields[name].takes}"))
    return errors, values
