"""One culprit from many findings, and what different policies would do with them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from unidle.guard.diagnosis import judge as verdict
from unidle.guard.diagnosis import within
from unidle.guard.log import Finding, LogLine, findings
from unidle.guard.log.model import TAKES_OUT
from unidle.guard.policy_table import POLICIES, judge


def said(*lines: str) -> list[Finding]:
    return list(findings(LogLine(k, f"[{k:5}.000001] {line}".encode()) for k, line in enumerate(lines, 1)))


def an_xid(code: int, rest: str = "pid=1, name=python", gpu: str = "3b") -> str:
    return f"NVRM: Xid (PCI:0000:{gpu}:00): {code}, {rest}"


INCIDENT = [
    an_xid(31),
    an_xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!"),
    an_xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    an_xid(45, "Ch 00000008", gpu="4c"),
    "INFO: task python:99 blocked for more than 120 seconds.",
]


def test_the_deepest_fault_is_the_culprit_and_the_driver_says_what_to_do():
    found = verdict(said(*INCIDENT))
    assert found is not None
    assert found.culprit is not None
    assert (found.culprit.code, found.device, found.action) == (119, "0000:3b:00.0", "reboot_node")
    assert [(e.part, e.finding.line) for e in found.evidence] == [
        ("cause", 2), ("also", 1), ("verdict", 3), ("symptom", 4), ("symptom", 5),
    ]  # fmt: skip
    assert "line 3" in found.because
    assert "xid 45" in found.because


def test_the_drivers_word_on_another_gpu_or_before_the_fault_does_not_count():
    asked = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    other = verdict(said(an_xid(119), an_xid(154, asked, gpu="4c")))
    assert other is not None
    assert other.action == "reset_gpu"
    before = verdict(said(an_xid(154, asked), an_xid(119)))
    assert before is not None
    assert before.action == "reset_gpu"


def test_a_driver_that_asks_for_nothing_any_more_leaves_only_the_job_to_restart():
    asked = an_xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    found = verdict(said(an_xid(119), asked))
    assert found is not None
    assert found.action == "restart_app"


def test_symptoms_alone_have_no_culprit_and_information_has_no_verdict():
    alone = verdict(said(an_xid(45), an_xid(43)))
    assert alone is not None
    assert (alone.culprit, alone.action) == (None, "watch")
    assert verdict(said(an_xid(63))) is None
    assert verdict([]) is None


def test_a_window_keeps_what_is_in_it_and_what_has_no_stamp():
    old, new = said(an_xid(31), an_xid(79))
    unknown = replace(old, stamp_ns=None)
    assert within([old, new, unknown], 2_000_001_000, 500_000_000) == (new, unknown)


SYMPTOMS = said(
    an_xid(45), an_xid(43, gpu="4c"), INCIDENT[4], "Buffer I/O error on dev dm-0, logical block 1"
)


@given(st.permutations(range(len(INCIDENT))), st.lists(st.sampled_from(SYMPTOMS)), st.data())
def test_symptoms_never_change_the_culprit(order: list[int], more: list[Finding], data: st.DataObject):
    base = said(*INCIDENT)
    expected = verdict(base)
    assert expected is not None
    shuffled = [base[k] for k in order]
    for symptom in more:
        line = data.draw(st.integers(1, 10_000))
        shuffled.insert(data.draw(st.integers(0, len(shuffled))), replace(symptom, line=line))
    found = verdict(shuffled)
    assert found is not None
    assert (found.culprit, found.device, found.action) == (expected.culprit, expected.device, expected.action)


def by_policy(line: str) -> dict[str, str]:
    (found,) = said(line)
    return {name: judge(name, found).action for name in POLICIES}


def test_policies_differ_where_they_are_known_to_differ():
    assert by_policy(an_xid(79)) == {
        "unidle": "reboot_node", "nvidia": "reboot_node", "aks": "watch", "eks": "replace", "gke": "watch",
    }  # fmt: skip
    assert by_policy(an_xid(63)) == {
        "unidle": "ignore", "nvidia": "ignore", "aks": "watch", "eks": "replace", "gke": "watch",
    }  # fmt: skip
    assert by_policy(an_xid(48))["gke"] == "drain"
    assert by_policy(an_xid(13))["eks"] == "watch"
    assert by_policy(an_xid(45))["nvidia"] == "restart_service"
    assert by_policy(an_xid(45, "Ch 1 caused by previous Xid 145"))["nvidia"] == "ignore"
    assert by_policy("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")["aks"] == "watch"


def test_conditions_have_the_names_that_users_of_each_cloud_know():
    (lost,) = said(an_xid(79))
    conditions = {name: judge(name, lost).condition for name in POLICIES}
    assert conditions == {
        "unidle": "GPUMissing", "nvidia": "", "aks": "XIDErrors", "eks": "AcceleratedHardwareReady=False", "gke": "XidCriticalError",
    }  # fmt: skip
    (double,) = said(an_xid(48))
    assert judge("gke", double).condition == "XidCriticalError"
    assert judge("eks", double).action in TAKES_OUT
    assert judge("aks", double).action not in TAKES_OUT


def test_every_policy_has_an_answer_for_every_xid():
    for code in range(200):
        (found,) = said(an_xid(code))
        for name in POLICIES:
            assert judge(name, found).because
