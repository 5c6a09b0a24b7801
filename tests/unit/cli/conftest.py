from cli_support import shell, undrawn

__all__ = ["shell", "undrawn"]
