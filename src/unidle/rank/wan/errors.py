"""What can go wrong with a channel. Messages name the peer, the value and the remedy."""

from __future__ import annotations


class WanError(Exception):
    """Base of every error of this package."""


class ChannelLost(WanError):
    """The peer could not be reached for ``give_up_s``, was started again, or its link damages everything."""


class ChannelClosed(WanError):
    """The channel was closed, here or by the peer, before this was done."""


class Refused(WanError):
    """One of the two does not talk to the other: another run, another secret, another version."""


class PortTaken(WanError):
    """Something else listens on the port, usually another run."""


class WrongSize(WanError):
    """A message came that is not as long as the buffer that was posted for it."""


class BadFrame(WanError):
    """What came over a flow is no frame. The flow is closed and opened again; users never see this."""
