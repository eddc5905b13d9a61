"""Windows and their forecast, inference pipelines, admission: the same code simulated and live. Pure."""
