"""What all HTML pages share: the frame, one style, one escape, and how data is carried."""
