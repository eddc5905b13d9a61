"""Pictures of the ledger: one HTML file and one block of text, both made from :class:`ReportData`."""
