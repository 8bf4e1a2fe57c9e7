"""What can go wrong here, as one kind of error."""


class HardwareError(Exception):
    """Something could not be packed, found or run; the text says what and why, in one line."""
