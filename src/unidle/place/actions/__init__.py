"""What is tried for a job that waits: start it, stop or move others for it, reserve quota and room."""
