"""Frozen values that every other package speaks in: devices, claims, plans, records, errors. No I/O here."""
