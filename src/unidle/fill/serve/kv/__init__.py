"""Keys and values in blocks: whose block each is, and attention over them."""
