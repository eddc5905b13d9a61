"""unidle keeps every GPU-second of a training fleet at work and shows where each one went."""

__version__ = "0.1.0"
