"""Files that users write: the job file and the fleet file. Submodules are imported where needed."""
