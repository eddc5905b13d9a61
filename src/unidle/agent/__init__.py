"""The agent of a host: finds what the host has, joins it to a fleet, and starts boxes on it. See ``docs/rooms/agent.md``."""
