"""What looking costs stays below its share, whatever a look costs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.scope.continuous.worker import AIM, HZ_LEAST, Duty


def test_cheap_looks_come_as_often_as_was_asked():
    duty = Duty(0.01, 60, 99)
    assert duty.next_s(5) == 5 and duty.next_s(5, news_s=20) == 20
    duty.looked(7, 0.05)
    assert duty.next_s(7) == 67 and duty.hz == 99


def test_dear_looks_come_less_often_and_sample_less():
    duty = Duty(0.01, 60, 99)
    duty.looked(0, 4.0)
    assert duty.next_s(0) == 4.0 / (0.01 * AIM) and duty.hz == 49
    duty.looked(500, 4.0)
    duty.looked(1000, 4.0)
    assert duty.hz == HZ_LEAST
    for k in range(4):
        duty.looked(10_000 * (k + 2), 0.01)
    assert duty.hz == 99


def test_what_is_new_is_looked_at_as_soon_as_the_last_look_is_paid_for():
    duty = Duty(0.01, 60, 99)
    duty.looked(0, 0.08)
    assert duty.next_s(1, news_s=1) == 0.08 / (0.01 * AIM)
    assert duty.next_s(30, news_s=29) == 30 and duty.next_s(30, news_s=45) == 45
    assert duty.next_s(30, news_s=100) == 60


@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40), st.floats(0, 2))
def test_looks_never_cost_more_than_their_share_over_time(costs, start):
    duty = Duty(0.01, 10, 99)
    duty.used(0.0, start)
    now, spent = 0.0, start
    for cost in costs:
        now = duty.next_s(now)
        duty.looked(now, cost)
        spent += cost
    # when the last one is paid for
    end = duty.next_s(now, news_s=now)
    assert spent <= 0.01 * AIM * end * 1.000001 + 1e-9
