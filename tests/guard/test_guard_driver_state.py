"""What is said of a driver that does not answer."""

from __future__ import annotations

from unidle.guard.driver_state import died


def test_a_driver_that_stops_answering_is_a_fault_of_the_node_that_a_restart_repairs() -> None:
    state = died("GPU is lost")
    assert state.fault is not None
    assert (state.fault.role, state.fault.action) == ("culprit", "reboot_node")
    assert "GPU is lost" in state.fault.because
