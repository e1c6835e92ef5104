"""`/connector-plugins`: the one plugin that this process has, its fields, and its judgement of a configuration."""

from __future__ import annotations

from deelog_connector.rest.entities import Answer, Call, Plugin, RestError
from deelog_connector.rest.remote import as_text, without_masks
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_schemas.config.validation import definitions, judge


class Plugins:
    """See the module."""

    def __init__(self, lifecycle: Lifecycle, version: str) -> None:
        self._lifecycle, self._version = lifecycle, version

    @property
    def _class(self) -> str:
        return str(self._lifecycle.config["connector.class"])

    async def listed(self, _: Call) -> Answer:
        return Answer([Plugin(self._class, "source", self._version)])

    async def config(self, call: Call) -> Answer:
        if _short(call.path["plugin"]) not in _names(self._class):
            raise RestError(404, f"Unknown plugin {call.path['plugin']}.")
        return Answer(definitions())

    async def validate(self, call: Call) -> Answer:
        """Always 200 with the errors inside. References are not looked up."""
        plugin, given = call.path["plugin"], as_text(call.body)
        included = given.get("connector.class")
        if included is not None and not _short(included).endswith(_short(plugin)):
            raise RestError(400, f"Included connector type {included} does not match request type {plugin}")
        if _short(plugin) not in _names(self._class):
            raise RestError(404, f"Unknown plugin {plugin}.")
        whole, errors = without_masks(given, self._lifecycle.config, self._lifecycle.file)
        return Answer(judge(whole, self._lifecycle.config.role, errors).body)


def _short(name: str) -> str:
    """Connect takes a class by its name with or without `Connector` at the end."""
    return name.removesuffix("Connector") or name


def _names(plugin: str) -> set[str]:
    """By which names the plugin answers: with the package and without."""
    short = _short(plugin)
    return {short, short.rpartition(".")[2]}
