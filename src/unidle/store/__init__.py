"""The event log and what stands beside it; open one with :func:`unidle.store.open.open_store`."""
