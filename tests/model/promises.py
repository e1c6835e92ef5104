"""The promises of each model: with all rules on nothing breaks, and with any rule removed its promise breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tests.model.explore import Result
from tests.model.takeover.suite import Known

Run = Callable[[str, int], Result]


class RuleLike(Protocol):
    """The fields of every model's rules."""

    @property
    def meaning(self) -> str: ...
    @property
    def config(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def steps(self) -> int: ...


def assert_needed(run: Run, rules: Mapping[str, RuleLike], name: str, bound: int) -> None:
    """Without the rule its counterexample is found, of the kind and within the length that the rule states."""
    rule = rules[name]
    result = run(f"{rule.config} {name}=0", bound)
    script = "\n".join(result.script)
    assert result.violation is not None, f"{name}: {result}"
    assert result.violation.startswith(rule.kind), f"{name}: {result}\n{script}"
    assert len(result.script) <= rule.steps, f"{name}: {result}\n{script}"


def assert_sound(run: Run, config: str, states: int) -> Result:
    """Nothing breaks within this many states."""
    result = run(config, states)
    assert result.violation is None, "\n".join([config, str(result), *result.script])
    return result


def assert_all_sound(run: Run, configs: Iterable[str], per_config: int, enough: int, covered: Iterable[str]) -> None:
    """Nothing breaks, in enough states, and each kind of step was tried."""
    states, counts = 0, Counter[str]()
    for config in configs:
        result = assert_sound(run, config, per_config)
        states += result.states
        counts += result.counts
    assert states >= enough
    never = [kind for kind in covered if not counts[kind]]
    assert not never, f"never tried: {never}; tried: {dict(counts)}"


def assert_still_wrong(run: Run, known: Known, bound: int) -> None:
    """Not a promise but a reminder: this fails once the product is fixed. Then remove the entry."""
    result = run(known.config, bound)
    assert result.violation is not None, f"mended, it seems: {known.words}"
    assert result.violation.startswith(known.kind), "\n".join([str(result), *result.script])
