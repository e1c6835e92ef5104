"""Requests and answers, as Kafka Connect writes them."""

from __future__ import annotations

import msgspec
import pytest

from deelog_connector.rest.entities import (
    Call,
    ConnectorOffsets,
    ConnectorState,
    Expanded,
    Plugin,
    RestError,
    TaskState,
)


def test_a_boolean_of_the_query_is_true_or_it_is_false() -> None:
    call = Call({}, [("a", "TRUE"), ("b", "1"), ("c", "false"), ("c", "true"), ("d", "")])
    assert [call.asked(name) for name in "abcde"] == [True, False, True, False, False]


def test_a_name_of_the_query_may_have_several_values() -> None:
    call = Call({}, [("expand", "status"), ("other", "x"), ("expand", "info")])
    assert (call.values("expand"), call.values("none")) == (["status", "info"], [])


def test_an_error_has_headers_of_its_own() -> None:
    error, other = RestError(404, "none"), RestError(405, "no", {"Allow": "GET"})
    assert (error.status, error.message, error.headers, str(error)) == (404, "none", {}, "none")
    assert other.headers == {"Allow": "GET"}


def test_what_is_none_is_left_out_as_connect_does() -> None:
    assert msgspec.to_builtins(ConnectorState("RUNNING", "h:1")) == {"state": "RUNNING", "worker_id": "h:1"}
    assert msgspec.to_builtins(TaskState(1, "FAILED", "h:1", "why", "1")) == {
        "id": 1,
        "state": "FAILED",
        "worker_id": "h:1",
        "trace": "why",
        "version": "1",
    }
    assert msgspec.to_builtins(Expanded()) == {}
    assert msgspec.to_builtins(Plugin("x.Y", "source", "1"))["class"] == "x.Y"


@pytest.mark.parametrize("given", [{"offset": []}, {"offsets": [{"partition": {"cache": "c"}, "offset": None}]}])
def test_offsets_of_another_shape_are_none(given: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, ConnectorOffsets)
