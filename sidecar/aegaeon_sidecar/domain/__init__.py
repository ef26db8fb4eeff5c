"""Plain data and rules that every room knows: errors, the program of commands, the lock of all books."""
