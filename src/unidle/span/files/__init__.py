"""The span file and what is written into it. Submodules are imported where needed."""
