"""What every nanosecond of every device slice was for: causes, postings, segments, questions about them."""
