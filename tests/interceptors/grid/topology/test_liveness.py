"""Which members a controller answers, which it declares dead, and which leases have expired: an answer is a lease."""

from __future__ import annotations

from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.topology.controller import Situation
from deelog_interceptors.grid.topology.liveness import Liveness
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.requests import Request
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View

A, B, C = "a@1", "b@1", "c@1"
TIMEOUT, LAPSE = 1.0, 5.0


class Desk:
    """A is controller of a view of A, B and C since second 100."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = Registry("p.c.topology", 1, lambda _: None, lambda: None)
        members = {m: Registration(m, "h:1", "h:2") for m in (A, B, C)}
        self.registry.members = {m[0]: member for m, member in members.items()}
        self.registry.controller = A
        self.view = View(7, A, members, (SegmentState(State.ONLINE, 3, B, (B, C), (B, C)),))
        self.book = self.term(self.view)
        self._beats = 0

    def term(self, view: View) -> Liveness:
        """A's term as controller, from `view` on, confirmed now."""
        return Liveness(A, self.registry, view, self.now, asked=self.now, timeout=TIMEOUT, lease_expiry=LAPSE)

    def without_c(self) -> None:
        """C is dead, and the view without it is published."""
        members = {m: member for m, member in self.view.members.items() if m != C}
        self.book = self.term(View(8, A, members, (SegmentState(State.ONLINE, 8, A, (A,), (A,)),)))

    def beat(self, member: str, *requests: Request, topology_id: int = 7) -> tuple[bool, bool]:
        """A heartbeat: whether it is new, and whether it is answered, with its own number and the view's id."""
        self._beats += 1
        news, answer = self.book.heartbeat(member, Heartbeat(self._beats, topology_id, False, list(requests)), self.now)
        assert answer in (None, Heard(self._beats, self.book.view.topology_id))
        return news, answer is not None

    def answers(self, *members: str) -> list[bool]:
        return [self.beat(member)[1] for member in members]

    def refuse(self, member: str) -> None:
        """The member's process ends: its address refuses connections, and its next heartbeat does not come."""
        assert not self.book.refuse(member)
        assert self.book.refuse(member)
        self.now += 0.21

    def situation(self, *dead: str, copies: int = 2) -> Situation:
        lapsed = self.book.lapsed(self.now)
        return self.book.situation(frozenset(dead), lapsed, self.now, floor=0, copies=copies, unclean=False, settle=1.0)


def test_who_has_just_taken_office_answers() -> None:
    desk = Desk()
    assert desk.answers(B) == [True]
    desk.now += 0.9
    assert desk.answers(A, B, C) == [True, True, True]


def test_a_heartbeat_that_was_overtaken_says_nothing() -> None:
    """One of an earlier connection comes behind the first of the next one."""
    desk = Desk()
    desk.answers(A, B, C)
    older = Heartbeat(desk._beats - 1, 6, False, [])
    desk.beat(B, topology_id=8)
    assert desk.book.is_behind(desk.now)
    assert desk.book.heartbeat(B, older, desk.now) == (False, None)
    assert desk.book.is_behind(desk.now)


def test_nobody_is_answered_while_a_member_is_silent() -> None:
    """The silent member may be controller, with a view that this node has not read."""
    desk = Desk()
    desk.answers(A, B, C)
    desk.now += 1.1
    assert desk.answers(A, B) == [False, False]
    desk.book.confirm(asked=desk.now)
    desk.now += 0.1
    # What a cut has held back arrives when it heals: the member may have another controller since.
    assert desk.answers(C) == [False]
    assert desk.answers(A, B, C) == [False, False, False]
    assert desk.book.to_confirm(desk.now)
    desk.book.confirm(asked=desk.now)
    assert desk.answers(A, B, C) == [True, True, True]


def test_a_refused_connection_counts_as_silence() -> None:
    """A new process of that node may be controller already."""
    desk = Desk()
    desk.answers(A, B, C)
    desk.refuse(C)
    desk.now += 0.9
    assert desk.answers(A, B) == [False, False]


def test_after_a_pause_nobody_is_answered_until_the_seat_is_confirmed() -> None:
    desk = Desk()
    desk.now += 0.5
    desk.book.doubt(desk.now)
    assert desk.book.to_confirm(desk.now)
    assert desk.answers(A, B, C) == [False, False, False]
    desk.book.confirm(asked=desk.now - 0.1)  # a request from before the pause says nothing about the time after it
    assert desk.answers(A, B, C) == [False, False, False]
    desk.book.confirm(asked=desk.now)
    assert not desk.book.to_confirm(desk.now)
    assert desk.answers(A, B, C) == [True, True, True]


def test_a_later_view_than_its_own_is_waited_for_as_long_as_somebody_who_has_it_lives() -> None:
    desk = Desk()
    desk.answers(A, B, C)
    assert not desk.book.is_behind(desk.now)
    desk.beat(C, topology_id=8)
    desk.now += 1.0
    assert desk.book.is_behind(desk.now)
    desk.now += 0.1
    assert not desk.book.is_behind(desk.now)
    desk.beat(C, topology_id=8)
    desk.book.follow(desk.view._replace(topology_id=8))
    assert not desk.book.is_behind(desk.now)


def test_only_a_heartbeat_tells_which_view_a_member_knows() -> None:
    """A clock goes on between the moment when a term begins and that in which it notes whom it has."""
    desk = Desk()
    assert not desk.book.has_heard_all(99.9)
    desk.now += 0.1
    desk.answers(B)
    assert not desk.book.has_heard_all(99.9)
    desk.now += 3.0  # a pause of its own forgives silence, and is no answer
    desk.book.forgive_own_pause(desk.now)
    assert not desk.book.has_heard_all(99.9)
    desk.answers(C)
    assert desk.book.has_heard_all(99.9)
    assert not desk.book.has_heard_all(100.1)


def test_with_a_node_gone_it_answers_only_as_long_as_kafka_confirms_the_seat() -> None:
    """If all were cut off from Kafka, it would not learn of a node that restarts and finds no owner alive."""
    desk = Desk()
    desk.without_c()
    assert desk.answers(A, B) == [True, True]
    assert not desk.book.to_confirm(desk.now)
    desk.now += 0.6
    assert desk.book.to_confirm(desk.now)
    assert desk.answers(A, B) == [True, True]
    desk.now += 0.5
    assert desk.answers(B, A) == [False, False]
    desk.book.confirm(asked=desk.now - 0.2)
    assert desk.answers(A, B) == [True, True]
    desk.now += 0.9
    assert desk.answers(B, A) == [False, False]


def test_with_every_node_in_the_view_writes_go_on_while_kafka_is_away() -> None:
    desk = Desk()
    desk.without_c()
    del desk.registry.members["c"]
    for _ in range(100):
        desk.now += 0.9
        desk.answers(A, B)
    assert desk.answers(A, B) == [True, True]
    assert not desk.book.to_confirm(desk.now)


def test_who_is_not_controller_answers_nobody() -> None:
    desk = Desk()
    desk.registry.controller = B
    assert desk.answers(A, B, C) == [False, False, False]


def test_one_that_is_being_declared_dead_is_not_answered_until_the_view_is_there() -> None:
    """The view without it is under way, and counts the lease from the begin of its silence."""
    desk = Desk()
    desk.answers(A, B, C)
    desk.refuse(C)
    assert desk.book.declare_dead(desk.now) == [C]
    assert desk.answers(A, B, C) == [True, True, False]
    desk.book.clear_dead()
    assert desk.answers(C) == [True]


def test_a_refused_connection_alone_is_no_death() -> None:
    """A living member is heard by the time when its next heartbeat is due."""
    desk = Desk()
    desk.answers(A, B, C)
    desk.now += 0.21
    desk.book.refuse(C)
    assert desk.book.declare_dead(desk.now) == []  # one, though its heartbeat is late
    desk.answers(C)
    desk.book.refuse(C)
    assert desk.book.declare_dead(desk.now + 0.21) == []  # each heartbeat begins the count anew
    desk.book.refuse(C)
    assert desk.book.declare_dead(desk.now + 0.19) == []  # two, and the next heartbeat is not due yet
    assert desk.book.declare_dead(desk.now + 0.21) == [C]


def test_a_controller_that_hears_less_than_half_of_the_view_hears_too_few() -> None:
    desk = Desk()
    desk.answers(A, B, C)
    desk.now += 0.3
    desk.answers(B)
    desk.now += 0.39
    assert not desk.book.hears_too_few(desk.now)  # itself, and B
    desk.now += 0.02
    assert desk.book.hears_too_few(desk.now)  # though neither is silent for the whole timeout
    assert desk.book.declare_dead(desk.now) == []
    desk.answers(B)
    assert not desk.book.hears_too_few(desk.now)
    desk.book.refuse(B)
    assert not desk.book.hears_too_few(desk.now)
    desk.book.refuse(B)
    assert desk.book.hears_too_few(desk.now)
    desk.registry.members["b"] = Registration("b@2", "h:1", "h:2")
    assert not desk.book.hears_too_few(desk.now)  # of A and C, it hears half: B's node is heard as another


def test_the_unreachable_are_those_that_kafka_hears_but_for_the_former_processes_of_a_node() -> None:
    desk = Desk()
    assert desk.book.unreachable(frozenset({B, C}), frozenset({A, C})) == {C}
    desk.registry.members["c"] = Registration("c@2", "h:1", "h:2")
    assert desk.book.unreachable(frozenset({B, C}), frozenset({A, C})) == frozenset()


def test_a_segment_is_left_by_all_once_each_that_was_in_sync_is_lost() -> None:
    desk = Desk()
    assert desk.book.leaves_nobody(frozenset({A, B, C}))
    assert not desk.book.leaves_nobody(frozenset({A, B}))
    desk.book.follow(desk.view._replace(rows=(SegmentState(),)))
    assert not desk.book.leaves_nobody(frozenset({A, B, C}))  # nobody had it yet


def test_the_dead_are_the_silent_the_refused_and_those_that_were_replaced() -> None:
    desk = Desk()
    desk.answers(A, B, C)
    assert desk.book.declare_dead(desk.now) == []
    desk.registry.members["b"] = Registration("b@2", "h:1", "h:2")
    assert desk.book.declare_dead(desk.now) == [B]
    assert desk.book.to_fence([B]) == []  # its newer process has fenced it
    desk.now += 1.1
    assert desk.book.declare_dead(desk.now) == [B, C]
    assert desk.book.to_fence([B, C]) == [C]
    desk.book.fenced(C)
    assert desk.book.to_fence([B, C]) == []


def test_who_has_left_and_holds_nothing_is_not_fenced() -> None:
    """Its producer may be that of the process that replaces it by now."""
    desk = Desk()
    leaving = desk.view.members | {m: desk.view.members[m]._replace(leaving=True) for m in (B, C)}
    desk.book.follow(View(8, A, leaving, (SegmentState(State.ONLINE, 3, B, (B,), (B,)),)))
    assert desk.book.to_fence([B, C]) == [B]  # B holds a segment still


def test_a_controller_that_was_stopped_itself_holds_it_against_nobody() -> None:
    desk = Desk()
    desk.answers(A, B, C)
    desk.now += 20.0
    desk.book.forgive_own_pause(desk.now)
    assert desk.book.declare_dead(desk.now) == []


def test_how_long_a_member_is_silent_is_told_whatever_is_forgiven() -> None:
    """Requests to Kafka that take long look like pauses: a controller that is cut off would forgive for ever."""
    desk = Desk()
    desk.answers(B)
    for _ in range(5):
        desk.now += 0.8
        desk.book.forgive_own_pause(desk.now)
    assert desk.book.declare_dead(desk.now) == []
    assert [round(desk.now - desk.book.silent_since(member), 3) for member in (B, C)] == [4.0, 4.0]


def test_a_pause_of_the_controller_is_forgiven_from_half_the_timeout_on_and_once() -> None:
    def dead(*ticks: float) -> list[str]:
        """Who is dead after seconds without a heartbeat, of which the controller looked at the clock in steps."""
        desk = Desk()
        desk.answers(A, B, C)
        for tick in ticks:
            desk.now += tick
            desk.book.forgive_own_pause(desk.now)
        return desk.book.declare_dead(desk.now)

    assert dead(0.4, 0.4, 0.4) == [B, C]
    assert dead(0.6, 0.4, 0.4) == []
    assert dead(0.6, 0.4, 0.4, 0.4) == [B, C]


def test_it_is_settled_after_a_while_or_with_more_members_than_copies() -> None:
    desk = Desk()
    desk.answers(A, B)
    assert not desk.situation().settled
    desk.beat(C)
    assert desk.situation().settled
    assert not desk.situation(C).settled
    desk.now += 1.1
    assert desk.situation().settled


def test_it_is_not_settled_while_one_of_the_view_may_be_heard_yet() -> None:
    """Else whoever lives would lose what it owns."""
    desk = Desk()
    desk.answers(A, B)
    assert not desk.situation(copies=1).settled
    assert desk.situation(C, copies=1).settled
    desk.now += 1.1
    assert desk.situation(copies=1).settled


def test_the_dead_are_forgotten_once_the_view_without_them_is_there() -> None:
    desk = Desk()
    desk.answers(A, B, C)
    desk.refuse(C)
    desk.situation(*desk.book.declare_dead(desk.now))
    assert desk.beat(B) == (False, True)
    desk.book.follow(View(8, A, {m: desk.view.members[m] for m in (A, B)}, desk.view.rows))
    assert desk.book.declare_dead(desk.now) == []
    assert desk.beat(C)[0]  # one that comes back is news


def test_leases_run_out_by_silence_alone_and_the_dead_are_remembered() -> None:
    desk = Desk()
    desk.now += 10.0
    desk.answers(A, B, C)
    desk.refuse(B)
    desk.now += 0.9
    assert desk.situation(B, C).lapsed == frozenset()
    desk.now += 3.8
    assert desk.situation().lapsed == frozenset()
    desk.now += 0.2
    assert desk.situation().lapsed == {B, C}
    desk.beat(C)
    assert desk.situation().lapsed == {B}


def test_requests_count_in_the_view_that_they_were_made_in_and_of_the_living() -> None:
    desk = Desk()
    ask = Request("released", 0, 3)
    assert desk.beat(B, ask) == (True, True)
    assert desk.beat(B, ask)[0]
    desk.beat(C, ask, topology_id=6)
    assert desk.situation().requests == {B: [ask]}
    assert desk.situation(B).requests == {}
    assert B not in desk.situation().members  # forgotten until its next heartbeat


def test_a_heartbeat_that_says_nothing_new_is_no_news() -> None:
    desk = Desk()
    assert desk.beat(B)[0]
    assert not desk.beat(B)[0]
