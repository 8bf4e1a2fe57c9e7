"""Tools for those who work on the driver; nothing here is part of the distribution."""
