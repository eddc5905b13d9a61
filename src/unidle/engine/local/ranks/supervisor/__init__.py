"""What runs next to one rank, and in it before its script. Standard library only; nothing is imported here."""
