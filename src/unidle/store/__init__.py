"""The event log and the data stored next to it; open one with :func:`unidle.store.open.open_store`."""
