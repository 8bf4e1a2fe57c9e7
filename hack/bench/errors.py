"""What can go wrong with a measurement itself."""


class BenchError(Exception):
    """Nothing could be measured; the text says what is missing, in one line."""
