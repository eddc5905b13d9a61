"""Which sites, stages, microbatches and schedule train a model best. Pure."""
