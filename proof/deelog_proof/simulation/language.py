"""What scripts may say of one kind of cache: its settings, and its verbs with their arguments.

A verb is a handler: a function of the cluster and the arguments, whose parameters give their number. It returns False
where the event cannot happen and is skipped.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from deelog_proof.simulation.event import Event

MOST_ARGUMENTS: Final = 40
"""Of a verb whose arguments include another verb with its own, or a command's words."""

EVENT: Final = "event"
"""The shape of an argument that is a verb, with its own behind it."""

Handler: TypeAlias = Callable[..., bool | None]
Settings: TypeAlias = Mapping[str, int]
Shape: TypeAlias = Callable[[str, Settings, Sequence[str]], str]
"""What is wrong with an argument, behind those before it; empty where nothing is."""


class Verb(NamedTuple):
    """`shapes` are the kinds of its arguments that are neither node names nor free."""

    handler: Handler
    least: int
    most: int
    shapes: tuple[str, ...]
    fault: bool
    ends: str | None
    """The last argument with which it ends a fault instead."""


class Verbs(dict[str, Verb]):
    """By name."""

    def verb(self, *shapes: str, fault: bool = True, ends: str | None = None) -> Callable[[Handler], Handler]:
        """Adds a handler to the table, by its name."""

        def register(handler: Handler) -> Handler:
            _, *parameters = inspect.signature(handler).parameters.values()
            least = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)
            open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
            most = MOST_ARGUMENTS if open_ended else len(parameters)
            self[handler.__name__.strip("_")] = Verb(handler, least, most, shapes, fault, ends)
            return handler

        return register

    def is_fault(self, event: Event) -> bool:
        """Whether an event is a fault: not a command, the end of a fault, a name, or a wait."""
        verb = self[event.verb]
        return verb.fault and (verb.ends is None or event.arguments[-1:] != (verb.ends,))

    def happen(self, cluster: Any, event: Event) -> bool:
        """Executes an event; False where it cannot happen now. An event in its arguments keeps its names until then."""
        verb, names, arguments = self[event.verb], cluster.names, event.arguments
        own = verb.shapes.index(EVENT) if EVENT in verb.shapes else len(arguments)
        known = (names.get(argument, argument) for argument in arguments[:own])
        return verb.handler(cluster, *known, *arguments[own:]) is not False


@dataclass(frozen=True)
class Language:
    """`settings` with their defaults, and `least` values, where these are not 1."""

    settings: Settings
    least: Settings
    verbs: Verbs
    shapes: Mapping[str, Shape]

    def check_setting(self, name: str, value: int) -> None:
        """Raises `ValueError`."""
        if name not in self.settings:
            raise ValueError(f"{name} is none of {', '.join(self.settings)}")
        least = self.least.get(name, 1)
        if value < least:
            raise ValueError(f"{name} is {least} at least")

    def check(self, verb: str, arguments: Sequence[str], settings: Settings) -> None:
        """Raises `ValueError` where that is no event. Call it once all settings are known."""
        if verb not in self.verbs:
            raise ValueError(f"{verb} is none of {', '.join(self.verbs)}")
        _, least, most, shapes, *_ = self.verbs[verb]
        if not least <= len(arguments) <= most:
            raise ValueError(f"{verb} takes {least} to {most} arguments")
        for number, (shape, argument) in enumerate(zip(shapes, arguments, strict=False)):
            if shape == EVENT:
                self.check(argument, arguments[number + 1 :], settings)
            elif shape and (wrong := self.shapes[shape](argument, settings, arguments[:number])):
                raise ValueError(wrong)


def one_of(words: Collection[str]) -> Shape:
    """A shape: one of some words."""
    return lambda argument, _, __: "" if argument in words else f"{argument} is none of {', '.join(words)}"


def numbered(name: str) -> Shape:
    """A shape: a number below the setting that has this name's plural."""

    def wrong(argument: str, settings: Settings, _: Sequence[str]) -> str:
        last = settings[f"{name}s"] - 1
        known = argument.isdecimal() and int(argument) <= last
        return "" if known else f"{argument} is no {name}: they are 0 to {last}"

    return wrong


def whole(argument: str, _: Settings, __: Sequence[str]) -> str:
    """A shape: a whole number."""
    return "" if re.fullmatch(r"-?\d{1,9}", argument) else f"{argument} is no whole number"


def on_or_off(argument: str, _: Settings, __: Sequence[str]) -> str:
    """A shape: on or off."""
    return "" if argument in ("on", "off") else f"{argument} is neither on nor off"
