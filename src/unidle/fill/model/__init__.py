"""What prefill costs: time of its pieces, keys and values, weights. Pure."""
