"""The devices of this machine, and parts of them."""
