"""Whether a model fits a device: bytes by what they are for, with the arithmetic."""
