"""Files of other profilers, one reader a form. Each recognises its form by content and fills a builder."""
