"""The engine of many hosts: gangs whose ranks are held by boxes that dial the hub."""
