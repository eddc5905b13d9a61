"""Errors of channels. Messages name the peer, the value and the remedy."""

from __future__ import annotations


class WanError(Exception):
    """Base of every error of this package."""


class ChannelLost(WanError):
    """The peer could not be reached for ``give_up_s``, was started again, or its link damages everything."""


class ChannelClosed(WanError):
    """The channel was closed, here or by the peer, before this was done."""


class Refused(WanError):
    """The connection was refused: another run, another secret, another version."""


class PortTaken(WanError):
    """Another process listens on the port, usually another run."""


class WrongSize(WanError):
    """A message does not have the length of the buffer that was posted for it."""


class BadFrame(WanError):
    """The data received over a flow is not a frame. The flow is closed and opened again; users never see this."""
