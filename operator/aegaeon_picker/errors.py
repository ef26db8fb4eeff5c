"""What can be wrong with the picker's start."""


class PickerError(Exception):
    """A sentence that says what is wrong and what to do."""
