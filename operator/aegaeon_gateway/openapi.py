def description() -> bytes:
    return b"{}"
