"""Files of jobs that have ended: compressed, archived and removed."""
