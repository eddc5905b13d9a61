"""What is watched of running gangs: progress, storage, idle devices, profiles."""
