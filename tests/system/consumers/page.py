"""The recipes of docs/consumers.md, as they stand there but for the topic and where Kafka is."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "consumers.md"
TOPIC, BOOTSTRAP = "shop.sessions", "localhost:9092"


def recipe(heading: str, language: str) -> str:
    """The one block of `language` below `## heading`."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    found = [section for section in sections if section.startswith(f"{heading}\n")]
    assert len(found) == 1, f"{len(found)} sections {heading!r} in {PAGE.name}"
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", found[0], re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"{len(blocks)} blocks of {language} below {heading!r}"
    return str(blocks[0])


def replaced(text: str, changes: dict[str, str]) -> str:
    """`text` with each key of `changes` replaced; one that does not stand in it is a mistake."""
    for old, new in changes.items():
        assert old in text, f"{old!r} does not stand in the recipe:\n{text}"
        text = text.replace(old, new)
    return text
