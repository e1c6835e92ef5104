"""What a configuration that comes over the network may say.

The rule: a token lets its holder tune the connector, and nothing else. A configuration over REST must agree
with the process's own file in everything but the fields that tune (`Lifecycle.check`), none of which names a file, an
address, a command or a credential. In those that tune no reference is looked up: `${file:…}`, `${dir:…}` and `${env:…}`
would put any file or variable of the process where it can be read, in an error or in a request to a broker. So a
reference is accepted only as it is in the file, under the same name.

Weighed in docs/decisions.md, "What REST may not change".
"""

from __future__ import annotations

from collections.abc import Mapping

from deelog_connector.rest.entities import Scalar
from deelog_schemas.config import MASK, Config, FieldError, refused_from_rest
from deelog_schemas.config.secrets import references


def as_text(given: Mapping[str, Scalar]) -> dict[str, str]:
    """JSON's numbers and booleans as the text that a file would hold."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def without_masks(given: Mapping[str, str], now: Config, file: Config) -> tuple[dict[str, str], list[FieldError]]:
    """The configuration that is meant, and what may not be said from afar. `now` is the present one, `file` that of the
    process's start: what was taken out of it over REST may come back.

    What was read from here and comes back has `********` in the place of what is secret: that means the present value.
    """
    whole, errors = {}, []
    for name, text in given.items():
        present = now.raw.get(name)
        if text == MASK and present is not None:
            text = present
        elif text == MASK:
            errors.append(FieldError(name, f"is {MASK}, which keeps the present value, and there is none"))
        elif references(text) and text not in (present, file.raw.get(name)):
            problem = "must not refer to anything but what the process's own file refers to, under the same name"
            errors.append(FieldError(name, problem))
        whole[name] = text
    return whole, errors + refused_from_rest(whole, file.raw)
