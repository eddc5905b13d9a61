"""Where boxes and agents dial in: sockets, TLS, tokens, and the offset of each host's clock."""
