"""Parts of devices that are cut on demand: which device gives a part to whom."""
