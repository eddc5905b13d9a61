"""What is trained where, and what it costs: sites, stages, links, layers and their measured times. Pure."""
