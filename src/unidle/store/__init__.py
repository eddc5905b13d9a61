"""The event log and what stands next to it; open one with :func:`unidle.store.open.open_store`."""
