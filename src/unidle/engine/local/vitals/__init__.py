"""How ranks and their devices are, observed from outside."""
