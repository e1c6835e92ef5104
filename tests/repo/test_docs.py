"""Links between pages lead somewhere, and every page is led to."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / part / "README.md" for part in ("connector", "interceptors", "schemas", "spark")),
    ]
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_DECISION = re.compile(r"docs/decisions\.md, \"(.*?)\"[.)]")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def targets(page: Path) -> list[tuple[str, Path, str]]:
    """(as written, file, heading) of each link of a page that stays in the project."""
    found = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, heading = link.partition("#")
            found.append((link, (page.parent / path).resolve() if path else page, heading))
    return found


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    lines = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        for link, path, heading in targets(page):
            if not path.exists() or (heading and heading not in headings(path)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert lost == []


def test_every_page_is_led_to_from_the_index() -> None:
    led = {path for _, path, _ in targets(DOCS / "README.md")}
    assert [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page not in led | {DOCS / "README.md"}] == []


def test_decisions_that_the_code_names_are_on_the_page() -> None:
    entries = set(re.findall(r"^### (.*)$", (DOCS / "decisions.md").read_text("utf-8"), re.MULTILINE))
    named = {
        (str(path.relative_to(ROOT)), name)
        for package in ("connector", "interceptors", "proof", "schemas", "spark", "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in _DECISION.findall(" ".join(line.strip(" #") for line in path.read_text("utf-8").splitlines()))
    }
    assert len(named) > 50
    assert sorted((place, name) for place, name in named if name not in entries) == []
