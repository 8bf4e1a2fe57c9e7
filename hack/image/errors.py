"""What can go wrong while an image is built."""


class ImageError(Exception):
    """The image cannot be built; one line that says what is missing or which program failed, and how."""
